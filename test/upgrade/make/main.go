// Command make writes what the tests of test/upgrade start from: a data
// directory that holds a record and a log entry of every kind, what the code
// that wrote a directory reads in it, and the descriptors of its messages.
//
// tools/upgradedata runs it inside the commit that the data is to be of, so it
// may use only what every kept commit has; operations that came later are text.
package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/rlfleet/rlfleet/coordinator/fsm"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	_ "github.com/rlfleet/rlfleet/proto/rlfleet/v1" // registers its messages
)

const usage = `usage: make fill DIR          write a data directory and close it in order
       make fill -kill DIR    … and end by SIGKILL
       make dump DIR FILE     what this code reads in a stopped node's directory, one record a line
       make protos FILE       the descriptors of this code's messages`

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "fill":
		return fill(ctx, args[1], false)
	case len(args) == 3 && args[0] == "fill" && args[1] == "-kill":
		return fill(ctx, args[2], true)
	case len(args) == 3 && args[0] == "dump":
		return compressed(args[2], func(w io.Writer) error { return dump(w, args[1]) })
	case len(args) == 2 && args[0] == "protos":
		return compressed(args[1], protos)
	}
	return errors.New(usage)
}

func compressed(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err == nil {
		err = errors.Join(write(z), z.Close())
	}
	return errors.Join(err, f.Close())
}

// dump writes the records of a stopped node, as its snapshot would hold them.
func dump(w io.Writer, dir string) error {
	s, err := fsm.Open(dir)
	if err != nil {
		return err
	}
	s.Records(func(r *raftlog.Record) bool {
		var b []byte
		if b, err = protojson.Marshal(r); err == nil {
			_, err = fmt.Fprintf(w, "%s\n", b)
		}
		return err == nil
	})
	return err
}

// protos writes the files of both packages as a FileDescriptorSet.
func protos(w io.Writer) error {
	set := &descriptorpb.FileDescriptorSet{}
	for _, pkg := range []protoreflect.FullName{"raftlog.v1", "rlfleet.v1"} {
		protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(f protoreflect.FileDescriptor) bool {
			set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
			return true
		})
	}
	slices.SortFunc(set.File, func(a, b *descriptorpb.FileDescriptorProto) int { return strings.Compare(a.GetName(), b.GetName()) })
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}
