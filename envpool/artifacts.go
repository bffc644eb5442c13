package envpool

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// EncodeFiles packs files taken out of a sandbox; equal files give equal bytes. No files give nil.
func EncodeFiles(files []File) ([]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.Path, "/"), Mode: int64(f.Mode.Perm()), Size: int64(len(f.Data)), Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("envpool: encode %s: %w", f.Path, err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, fmt.Errorf("envpool: encode %s: %w", f.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("envpool: encode files: %w", err)
	}
	return buf.Bytes(), nil
}

// DecodeFiles unpacks what EncodeFiles packed. Anything but regular files is refused as ErrUnsafe.
func DecodeFiles(data []byte) ([]File, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var out []File
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("envpool: decode files: %w", err)
		}
		if h.Typeflag != tar.TypeReg || slices.Contains(strings.Split(h.Name, "/"), "..") {
			return nil, fmt.Errorf("envpool: decode %s: %w", h.Name, ErrUnsafe)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("envpool: decode %s: %w", h.Name, err)
		}
		out = append(out, File{Path: "/" + h.Name, Mode: fs.FileMode(h.Mode).Perm(), Data: b})
	}
}
