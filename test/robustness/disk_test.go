package robustness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// diskSize is that of a machine's file system.
const diskSize = 192 << 20

// disk is where a machine keeps its data: a file system of its own in an image
// if the machine may mount one, or else a plain directory.
type disk struct {
	image string // empty: a plain directory
	mount string
}

// newDisk makes an empty disk below a directory.
func newDisk(home string, own bool) (*disk, error) {
	d := &disk{mount: filepath.Join(home, "disk")}
	if err := os.MkdirAll(d.mount, 0o755); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	if !own {
		return d, nil
	}
	d.image = filepath.Join(home, "image")
	if err := d.format(); err != nil {
		return nil, err
	}
	return d, nil
}

// mountable says why a machine cannot have a file system of its own.
func mountable(dir string) error {
	d, err := newDisk(filepath.Join(dir, "probe"), true)
	if err != nil {
		return err
	}
	return errors.Join(d.unmount(), os.RemoveAll(filepath.Join(dir, "probe")))
}

func (d *disk) format() error {
	if err := os.RemoveAll(d.image); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	f, err := os.Create(d.image)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	if err := errors.Join(f.Truncate(diskSize), f.Close()); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	if err := command("mkfs.ext4", "-q", "-F", "-m", "0", d.image); err != nil {
		return err
	}
	return d.remount()
}

func (d *disk) remount() error { return command("mount", "-o", "loop", d.image, d.mount) }

func (d *disk) unmount() error {
	if d.image == "" {
		return nil
	}
	return command("umount", d.mount)
}

// data is the directory that the node is told to use.
func (d *disk) data() string { return filepath.Join(d.mount, "data") }

// ballast is what fills a full disk.
func (d *disk) ballast() string { return filepath.Join(d.mount, "ballast") }

// fill leaves so many bytes of room, rounded down to what the file system gives.
func (d *disk) fill(room int64) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.mount, &s); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	f, err := os.Create(d.ballast())
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	defer f.Close()
	for size := max(0, int64(s.Bavail)*s.Bsize-room); size > 4096; size /= 2 { // what the file system needs itself is not known
		for {
			at, err := f.Seek(0, 2)
			if err != nil {
				return fmt.Errorf("disk: %w", err)
			}
			if syscall.Fallocate(int(f.Fd()), 0, at, size) != nil {
				break
			}
		}
	}
	return nil
}

func (d *disk) free() error {
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}

// crashImage copies the image as the power's loss would leave it: what the file
// system has not been told to keep is in memory only, and not in the copy.
func (d *disk) crashImage() error { return command("cp", "--sparse=always", d.image, d.image+".crash") }

// powerUp goes on from the copy. The process that used the disk has ended.
func (d *disk) powerUp() error {
	if err := d.unmount(); err != nil {
		return err
	}
	if err := os.Rename(d.image+".crash", d.image); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return d.remount()
}

// empty makes a new disk of it.
func (d *disk) empty() error {
	if d.image == "" {
		return os.RemoveAll(d.data())
	}
	return errors.Join(d.unmount(), d.format())
}

// newestSegment returns the log's file that is written to.
func (d *disk) newestSegment() (string, error) {
	files, err := filepath.Glob(filepath.Join(d.data(), "log", "*.wal"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("disk: no log in %s: %w", d.data(), err)
	}
	return slices.MaxFunc(files, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) }), nil
}

// spoil damages the newest file of the log: it is cut inside of its data, its
// end is as if never written, or a bit of it is another one.
func (d *disk) spoil(how string, r *rand.Rand) error {
	path, err := d.newestSegment()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	end := len(b)
	for end > 0 && b[end-1] == 0 {
		end--
	}
	if end < 200 {
		return errNothing
	}
	at := end - 1 - r.IntN(min(end/2, 2000))
	switch how {
	case "cut":
		b = b[:at]
	case "unwritten":
		clear(b[at:])
	default:
		b[at] ^= 1 << r.IntN(8)
	}
	return os.WriteFile(path, b, 0o644)
}

// errNothing says that there was nothing to break.
var errNothing = errors.New("there is nothing to break yet")

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
