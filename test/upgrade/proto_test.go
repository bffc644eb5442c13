package upgrade

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/rlfleet/rlfleet/proto/raftlog/v1" // registers today's messages
	_ "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

// broken compares a file of then with today's messages and returns what a
// reader of the other version would misread.
func broken(then protoreflect.FileDescriptor, now func(protoreflect.FullName) protoreflect.Descriptor) (out []string) {
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	var messages func(protoreflect.MessageDescriptors)
	enums := func(es protoreflect.EnumDescriptors) {
		for i := range es.Len() {
			old := es.Get(i)
			e, is := now(old.FullName()).(protoreflect.EnumDescriptor)
			if !is {
				bad("enum %s is gone", old.FullName())
				continue
			}
			for j := range old.Values().Len() {
				v := old.Values().Get(j)
				if w := e.Values().ByNumber(v.Number()); w == nil || w.Name() != v.Name() {
					bad("enum value %s = %d is gone or renamed", v.FullName(), v.Number())
				}
			}
		}
	}
	messages = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			old := ms.Get(i)
			m, is := now(old.FullName()).(protoreflect.MessageDescriptor)
			if !is {
				bad("message %s is gone", old.FullName())
				continue
			}
			for j := range old.Fields().Len() {
				f := old.Fields().Get(j)
				if got, want := field(m.Fields().ByNumber(f.Number())), field(f); got != want {
					bad("field %d of %s was %q and is %q", f.Number(), old.FullName(), want, got)
				}
			}
			enums(old.Enums())
			messages(old.Messages())
		}
	}
	enums(then.Enums())
	messages(then.Messages())
	for i := range then.Services().Len() {
		methods := then.Services().Get(i).Methods()
		for j := range methods.Len() {
			old := methods.Get(j)
			if m, is := now(old.FullName()).(protoreflect.MethodDescriptor); !is || method(m) != method(old) {
				bad("method %s is gone or takes or returns something else", old.FullName())
			}
		}
	}
	return out
}

// field is what both ends must agree on, and the name, which JSON readers of the manifest know it by.
func field(f protoreflect.FieldDescriptor) string {
	if f == nil {
		return ""
	}
	s := fmt.Sprintf("%s %s %s presence=%t", f.Cardinality(), f.Kind(), f.Name(), f.HasPresence())
	switch {
	case f.IsMap():
		s += fmt.Sprintf(" map of %s", f.MapValue().Kind())
	case f.Message() != nil:
		s += " " + string(f.Message().FullName())
	case f.Enum() != nil:
		s += " " + string(f.Enum().FullName())
	}
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		s += " in " + string(o.Name())
	}
	return s
}

func method(m protoreflect.MethodDescriptor) string {
	return fmt.Sprint(m.Input().FullName(), m.IsStreamingClient(), m.Output().FullName(), m.IsStreamingServer())
}

func today(name protoreflect.FullName) protoreflect.Descriptor {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil
	}
	return d
}

func kept(t *testing.T, path string) *descriptorpb.FileDescriptorSet {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	require.NoError(t, proto.Unmarshal(gunzip(t, path), set))
	require.NotEmpty(t, set.File)
	return set
}

// Messages only grow: whoever edits a .proto so that an earlier version's data
// or RPCs are misread learns it here (proto/raftlog/v1/README.md, rules 1 and 6).
func TestMessagesOnlyGrow(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.protos.gz")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		files, err := protodesc.NewFiles(kept(t, path))
		require.NoError(t, err)
		files.RangeFiles(func(then protoreflect.FileDescriptor) bool {
			for _, b := range broken(then, today) {
				t.Errorf("since %s: %s", filepath.Base(path), b)
			}
			return true
		})
	}
}

// What TestMessagesOnlyGrow would find, one edit at a time.
func TestBrokenMessagesAreFound(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.protos.gz")
	require.NoError(t, err)
	record := func(set *descriptorpb.FileDescriptorSet, name string) *descriptorpb.DescriptorProto {
		for _, f := range set.File {
			for _, m := range f.MessageType {
				if f.GetPackage() == "raftlog.v1" && m.GetName() == name {
					return m
				}
			}
		}
		t.Fatalf("no message %s", name)
		return nil
	}
	for name, c := range map[string]struct {
		edit func(set *descriptorpb.FileDescriptorSet)
		want string
	}{
		"nothing":         {func(*descriptorpb.FileDescriptorSet) {}, ""},
		"a field removed": {func(s *descriptorpb.FileDescriptorSet) { m := record(s, "Lease"); m.Field = m.Field[1:] }, "field 1 of raftlog.v1.Lease"},
		"a field renumbered": {func(s *descriptorpb.FileDescriptorSet) {
			record(s, "Lease").Field[0].Number = proto.Int32(99)
		}, "field 1 of raftlog.v1.Lease"},
		"a field renamed": {func(s *descriptorpb.FileDescriptorSet) {
			record(s, "Lease").Field[0].Name = proto.String("owner")
		}, "holder"},
		"a type changed": {func(s *descriptorpb.FileDescriptorSet) {
			record(s, "Lease").Field[3].Type = descriptorpb.FieldDescriptorProto_TYPE_SINT64.Enum()
		}, "sint64"},
		"a field made repeated": {func(s *descriptorpb.FileDescriptorSet) {
			record(s, "Lease").Field[3].Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}, "repeated"},
		"a field out of its oneof": {func(s *descriptorpb.FileDescriptorSet) {
			record(s, "Op").Field[0].OneofIndex = nil
		}, "in op"},
		"a field added": {func(s *descriptorpb.FileDescriptorSet) {
			m := record(s, "Lease")
			m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
				Name: proto.String("more"), Number: proto.Int32(77), Type: descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			})
		}, ""},
		"an enum value renamed": {func(s *descriptorpb.FileDescriptorSet) {
			for _, f := range s.File {
				for _, e := range f.EnumType {
					if e.GetName() == "Code" {
						e.Value[1].Name = proto.String("CODE_OTHER")
					}
				}
			}
		}, "CODE_FENCED"},
	} {
		t.Run(name, func(t *testing.T) {
			then, err := protodesc.NewFiles(kept(t, paths[0]))
			require.NoError(t, err)
			set := kept(t, paths[0])
			c.edit(set)
			now, err := protodesc.NewFiles(set)
			require.NoError(t, err)
			var found []string
			then.RangeFiles(func(f protoreflect.FileDescriptor) bool {
				found = append(found, broken(f, func(n protoreflect.FullName) protoreflect.Descriptor {
					d, err := now.FindDescriptorByName(n)
					if err != nil {
						return nil
					}
					return d
				})...)
				return true
			})
			if c.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0], c.want)
		})
	}
}
