// Package house checks the rules of the house: who may import whom, calls that are banned, and sizes.
package house

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/rlfleet/rlfleet/"

// pkg is what go list says of one package.
type pkg struct {
	ImportPath  string
	Dir         string
	GoFiles     []string
	TestGoFiles []string
	Imports     []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,Imports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []pkg
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		err := d.Decode(&p)
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all = append(all, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

var leaves = []string{"policy", "outcome", "gpu", "task", "coordinator/lease", "trainer/objective"}

// roles are the packages below the coordinator; they reach it through coordinator/client alone.
var roles = []string{"envpool", "verifier", "trajectory", "policy/", "rollout", "trainer"}

// concrete are implementations; only cmd and test wire them, and what is listed beside them.
var concrete = map[string][]string{
	"store/file":         {},
	"envpool/bubblewrap": {},
	"policy/engine/tiny": {},
	"policy/tiny":        {"policy/engine/tiny", "trainer/tiny"},
	"trainer/tiny":       {},
}

// suite reports whether the package is a conformance suite, called by the tests of implementations.
func suite(path string) bool { return strings.HasSuffix(path, "test") }

func in(path string, prefixes ...string) bool {
	for _, p := range prefixes {
		if path == strings.TrimSuffix(p, "/") || strings.HasPrefix(path, strings.TrimSuffix(p, "/")+"/") {
			return true
		}
	}
	return false
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		if in(p.ImportPath, "cmd", "test", "examples") || suite(p.ImportPath) {
			continue
		}
		for _, imp := range p.Imports {
			ours, isOurs := strings.CutPrefix(imp, module)
			bad := func(why string) { t.Errorf("%s imports %s: %s", p.ImportPath, imp, why) }
			switch {
			case slices.Contains(leaves, p.ImportPath):
				if isOurs && !slices.Contains(leaves, ours) {
					bad("a leaf imports leaves only")
				}
				if imp == "net" || strings.HasPrefix(imp, "net/") || strings.Contains(imp, "hashicorp/raft") || strings.Contains(imp, "google.golang.org/grpc") {
					bad("a leaf has no network")
				}
			case p.ImportPath == "coordinator/state":
				if isOurs && !slices.Contains(leaves, ours) && ours != "proto/raftlog/v1" {
					bad("the state machine imports leaves and the log's records only")
				}
				if slices.Contains([]string{"os", "net", "math/rand", "math/rand/v2"}, imp) {
					bad("the state machine is deterministic and does no I/O")
				}
			case p.ImportPath == "coordinator/fsm":
				if isOurs && !in(ours, "coordinator/state", "proto/raftlog", "internal") && !slices.Contains(leaves, ours) {
					bad("fsm imports state and the log's records")
				}
			case in(p.ImportPath, "coordinator"):
				if isOurs && in(ours, "envpool", "verifier", "trajectory", "rollout", "trainer", "policy/tiny", "policy/engine", "policy/publish") {
					bad("the coordinator knows no role")
				}
			case in(p.ImportPath, "internal"):
				if isOurs {
					bad("internal packages are mechanisms without domain")
				}
			case in(p.ImportPath, roles...):
				if isOurs && in(ours, "coordinator") && ours != "coordinator/client" && ours != "coordinator/lease" {
					bad("a role reaches the coordinator through its client")
				}
				if users, is := concrete[ours]; is && isOurs && !slices.Contains(users, p.ImportPath) {
					bad("implementations are wired by cmd")
				}
			}
		}
	}
}

// banned are calls by the packages in which they are not allowed.
var banned = []struct {
	call  string
	where func(p string, test bool) bool
	why   string
}{
	{"time.Now", func(p string, test bool) bool { return p == "coordinator/state" && !test }, "time is a field of the entry"},
	{"os.Getenv", func(p string, test bool) bool { return !in(p, "cmd", "test", "examples") && !suite(p) && !test }, "the environment is read in cmd"},
	{"context.Background", func(p string, test bool) bool { return !in(p, "cmd", "test", "examples") && !suite(p) && !test }, "contexts come from the caller"},
	{"context.TODO", func(string, bool) bool { return true }, "contexts come from the caller"},
	{"log.Fatal", func(string, bool) bool { return true }, "errors are returned"},
}

func TestBannedCalls(t *testing.T) {
	eachFile(t, func(p pkg, path string, test bool, f *ast.File, fset *token.FileSet, text string) {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" && !test {
				t.Errorf("%s: panic outside of tests", fset.Position(call.Pos()))
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			name := x.Name + "." + sel.Sel.Name
			for _, b := range banned {
				if name == b.call && b.where(p.ImportPath, test) {
					t.Errorf("%s: %s: %s", fset.Position(call.Pos()), name, b.why)
				}
			}
			if name == "time.Sleep" && test && !strings.Contains(text, "synctest") && !strings.HasSuffix(path, "bench_test.go") {
				t.Errorf("%s: a test sleeps outside of a synctest bubble", fset.Position(call.Pos()))
			}
			return true
		})
	})
}

var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b|not (yet )?implemented`)

func TestSizesAndComments(t *testing.T) {
	documented := map[string]bool{}
	for _, p := range packages(t) {
		if in(p.ImportPath, "proto") || p.ImportPath == strings.TrimSuffix(module, "/") {
			continue
		}
		require.LessOrEqual(t, strings.Count(p.ImportPath, "/"), 2, "%s: at most three path elements", p.ImportPath)
		require.NotContains(t, []string{"util", "utils", "common", "helpers", "types", "models", "manager", "misc", "shared"}, filepath.Base(p.ImportPath))
		if len(p.GoFiles) > 0 && len(p.TestGoFiles) == 0 && !in(p.ImportPath, "cmd", "examples") && !suite(p.ImportPath) {
			if suite(filepath.Dir(p.ImportPath)) || in(p.ImportPath, "test") {
				continue // programs of a suite
			}
			if has, _ := filepath.Glob(filepath.Join(p.Dir, "*_test.go")); len(has) == 0 {
				t.Errorf("%s has no test", p.ImportPath)
			}
		}
		documented[p.ImportPath] = len(p.GoFiles) == 0
	}
	eachFile(t, func(p pkg, path string, test bool, f *ast.File, fset *token.FileSet, text string) {
		limit := 600
		if test {
			limit = 1000
		}
		if n := strings.Count(text, "\n"); n > limit {
			t.Errorf("%s: %d lines, at most %d", path, n, limit)
		}
		if f.Doc != nil && !test {
			documented[p.ImportPath] = true
		}
		for i, line := range strings.Split(text, "\n") {
			if unfinished.MatchString(line) && !strings.HasSuffix(path, "house_test.go") {
				t.Errorf("%s:%d: unfinished: %s", path, i+1, strings.TrimSpace(line))
			}
		}
		if test {
			return
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > 80 {
					t.Errorf("%s: %s has %d lines, at most 80", path, fn.Name.Name, n)
				}
			}
		}
	})
	for path, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", path)
		}
	}
}

// eachFile parses every hand-written Go file of the module.
func eachFile(t *testing.T, visit func(p pkg, path string, test bool, f *ast.File, fset *token.FileSet, text string)) {
	t.Helper()
	fset := token.NewFileSet()
	for _, p := range packages(t) {
		if in(p.ImportPath, "proto") {
			continue
		}
		files, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		require.NoError(t, err)
		for _, path := range files {
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			require.NoError(t, err)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			visit(p, path, strings.HasSuffix(path, "_test.go"), f, fset, string(text))
		}
	}
}
