package task

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// recipe is what a Dockerfile means on a tier that shows the host's own
// programs: FROM is noted, WORKDIR, ENV and COPY of directories are honoured,
// and everything else is refused by name.
type recipe struct {
	image   string
	workdir string
	env     map[string]string
	layers  []copyLine
}

// copyLine copies the content of a directory of the build context.
type copyLine struct {
	source string // relative to the context, clean; "." for all of it
	dest   string // absolute, clean
}

// parseDockerfile interprets text; name is the file's name in messages.
func parseDockerfile(name string, text []byte) (*recipe, error) {
	r := &recipe{env: map[string]string{}}
	for _, line := range logicalLines(string(text)) {
		if err := r.instruction(line.text); err != nil {
			return nil, &refusal{err.kind, fmt.Sprintf("%s: line %d: %s", name, line.number, err.text)}
		}
	}
	if r.image == "" {
		return nil, &refusal{ErrInvalid, name + ": there is no FROM"}
	}
	return r, nil
}

type numbered struct {
	number int
	text   string
}

// logicalLines joins lines that end in a backslash and leaves comments and empty lines out.
func logicalLines(text string) []numbered {
	var out []numbered
	var cur strings.Builder
	start := 0
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if cur.Len() == 0 {
			start = i + 1
		}
		head, more := strings.CutSuffix(line, `\`)
		cur.WriteString(head)
		if more {
			cur.WriteByte(' ')
			continue
		}
		out = append(out, numbered{start, cur.String()})
		cur.Reset()
	}
	if cur.Len() > 0 {
		out = append(out, numbered{start, cur.String()})
	}
	return out
}

func (r *recipe) instruction(line string) *refusal {
	op, rest, _ := strings.Cut(line, " ")
	if tab := strings.IndexByte(op, '\t'); tab >= 0 {
		op, rest = line[:tab], line[tab+1:]
	}
	op, rest = strings.ToUpper(op), strings.TrimSpace(rest)
	if op == "FROM" {
		return r.from(rest)
	}
	if r.image == "" {
		return &refusal{ErrInvalid, op + " before FROM"}
	}
	switch op {
	case "WORKDIR":
		dir, err := r.word(rest)
		if err != nil {
			return err
		}
		if dir == "" {
			return &refusal{ErrInvalid, "WORKDIR names no directory"}
		}
		r.workdir = r.abs(dir)
		return nil
	case "ENV":
		return r.setEnv(rest)
	case "COPY":
		return r.copy(rest)
	}
	return &refusal{ErrUnsupported, op + " is not supported: nothing is built, the sandbox shows the host's programs; FROM, WORKDIR, ENV and COPY of directories are"}
}

func (r *recipe) from(rest string) *refusal {
	if r.image != "" {
		return &refusal{ErrUnsupported, "a second FROM is not supported: nothing is built"}
	}
	f := strings.Fields(rest)
	if len(f) == 0 || strings.HasPrefix(f[0], "-") {
		return &refusal{ErrUnsupported, fmt.Sprintf("FROM %s is not supported: write FROM and an image", rest)}
	}
	r.image = f[0]
	return nil
}

func (r *recipe) copy(rest string) *refusal {
	if strings.HasPrefix(rest, "[") || strings.Contains(rest, "<<") {
		return &refusal{ErrUnsupported, "COPY in list or here-document form is not supported"}
	}
	var words []string
	for _, w := range strings.Fields(rest) {
		if strings.HasPrefix(w, "--") {
			return &refusal{ErrUnsupported, fmt.Sprintf("COPY %s is not supported", w)}
		}
		w, err := r.word(w)
		if err != nil {
			return err
		}
		words = append(words, w)
	}
	if len(words) < 2 {
		return &refusal{ErrInvalid, "COPY wants a source directory and a destination"}
	}
	dest := r.abs(words[len(words)-1])
	for _, src := range words[:len(words)-1] {
		if strings.ContainsAny(src, "*?[") {
			return &refusal{ErrUnsupported, fmt.Sprintf("COPY %s: wildcards are not supported; copy the directory", src)}
		}
		if slices.Contains(strings.Split(src, "/"), "..") {
			return &refusal{ErrInvalid, fmt.Sprintf("COPY %s leaves the build context", src)}
		}
		rel := strings.TrimPrefix(path.Clean("/"+src), "/")
		if rel == "" {
			rel = "."
		}
		r.layers = append(r.layers, copyLine{source: rel, dest: dest})
	}
	return nil
}

// abs resolves a path of the Dockerfile against the WORKDIR so far.
func (r *recipe) abs(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join("/", r.workdir, p)
}

// setEnv understands NAME=value pairs and the older "NAME value".
func (r *recipe) setEnv(rest string) *refusal {
	name, value, _ := strings.Cut(rest, " ")
	if name != "" && !strings.Contains(name, "=") {
		v, err := r.word(strings.TrimSpace(value))
		if err != nil {
			return err
		}
		r.env[name] = v
		return nil
	}
	pairs, err := splitWords(rest)
	if err != nil {
		return err
	}
	if len(pairs) == 0 {
		return &refusal{ErrInvalid, "ENV sets nothing"}
	}
	next := map[string]string{}
	for _, p := range pairs {
		k, raw, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return &refusal{ErrInvalid, fmt.Sprintf("ENV %s: want NAME=value", p)}
		}
		v, err := r.word(raw)
		if err != nil {
			return err
		}
		next[k] = v
	}
	for k, v := range next { // one line sees the values from before it
		r.env[k] = v
	}
	return nil
}

// splitWords cuts at spaces outside quotes, keeping quotes and backslashes for word.
func splitWords(s string) ([]string, *refusal) {
	var out []string
	var cur strings.Builder
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(s):
			cur.WriteByte(c)
			i++
			cur.WriteByte(s[i])
			continue
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == ' ' || c == '\t':
			if cur.Len() > 0 {
				out = append(out, cur.String())
				cur.Reset()
			}
			continue
		}
		cur.WriteByte(c)
	}
	if quote != 0 {
		return nil, &refusal{ErrInvalid, fmt.Sprintf("a %c is not closed", quote)}
	}
	if cur.Len() > 0 {
		out = append(out, cur.String())
	}
	return out, nil
}

// word removes quotes and backslashes and puts values in for $NAME and ${NAME}.
func (r *recipe) word(s string) (string, *refusal) {
	var out strings.Builder
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(s):
			i++
			out.WriteByte(s[i])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == '$' && quote != '\'':
			name, n := variable(s[i+1:])
			if n == 0 {
				return "", &refusal{ErrUnsupported, fmt.Sprintf("%q: only $NAME and ${NAME} are replaced", s)}
			}
			v, ok := r.env[name]
			if !ok && name == "PATH" {
				v, ok = BasePath, true
			}
			if !ok {
				return "", &refusal{ErrInvalid, fmt.Sprintf("$%s is not set by an earlier ENV", name)}
			}
			out.WriteString(v)
			i += n
		default:
			out.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", &refusal{ErrInvalid, fmt.Sprintf("a %c is not closed", quote)}
	}
	return out.String(), nil
}

// variable returns the name at the start of s (after the dollar sign) and how many bytes it takes.
func variable(s string) (name string, n int) {
	if body, ok := strings.CutPrefix(s, "{"); ok {
		end := strings.IndexByte(body, '}')
		if end < 0 || identifier(body[:end]) != end || end == 0 {
			return "", 0
		}
		return body[:end], end + 2
	}
	n = identifier(s)
	return s[:n], n
}

// identifier returns the length of the variable name that s starts with.
func identifier(s string) int {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(s)
}
