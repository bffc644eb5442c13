package experiment

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// FuzzParse holds Parse to its contract on arbitrary text: it never panics,
// every error is an Error with a position, and what it accepts reads back.
func FuzzParse(f *testing.F) {
	sample, err := os.ReadFile("testdata/files.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		string(sample), shortest, "", "a", "- - -", "{", "? x\n: y", "a: &b [*b]", "a: !!x y", "%YAML 1.2\n---\n", "\"\\u12\"", "a:\n\t- b", "<<: [1]", "|\n x", "--- >\n", "1: {2: [", "!", "&", "*", "? - ? -",
		head + "  envs: [{name: a, shortGroup: {kind: keep, min: 3}}]\n", head + "  envs: [null]\n", head + "  envs: [{name: a, environment: {limits: {cpu: .5}}}]\n",
	} {
		f.Add(s, "spec.envs[0].weight=2")
	}
	f.Add(shortest, "spec.envs=[{name: [")
	f.Add(shortest, "spec.policy.lora.rank=&")
	f.Add(shortest, "metadata.labels.a=\x00")
	f.Fuzz(func(t *testing.T, text, set string) {
		e, err := resolve([]byte(text), "x.yaml", []string{set})
		if err != nil {
			all := Errors(err)
			if len(all) == 0 {
				t.Fatalf("an error of another kind: %v", err)
			}
			for _, one := range all {
				if one.File == "x.yaml" && (one.Line < 1 || one.Column < 1) {
					t.Fatalf("no position: %v", one)
				}
				if strings.Contains(one.Error(), "\n") || (one.Msg == "" && one.Want == "") {
					t.Fatalf("not one sentence: %q", one.Error())
				}
			}
			var first *Error
			if !errors.As(err, &first) {
				t.Fatal("errors.As does not find the first")
			}
			return
		}
		for _, again := range []string{e.Show(true), string(e.Canonical())} {
			back, err := Parse([]byte(again), "x.yaml")
			if err != nil {
				t.Fatalf("what was accepted does not read back: %v\n%s", err, again)
			}
			if back.Digest() != e.Digest() {
				t.Fatalf("another digest after a round trip:\n%s", again)
			}
		}
	})
}
