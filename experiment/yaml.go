package experiment

import (
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of the input: the parser's cost grows with the square of the nesting.
const (
	maxBytes   = 128 << 10
	maxNesting = 64
)

// kind is the type of a YAML value.
type kind string

const (
	kindNull  kind = "null"
	kindBool  kind = "boolean"
	kindInt   kind = "integer"
	kindFloat kind = "number"
	kindText  kind = "text"
	kindList  kind = "list"
	kindMap   kind = "mapping"
)

// coreFloat is the number of YAML 1.2's core schema.
var coreFloat = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

// node is a YAML value with its position.
type node struct {
	kind      kind
	text      string // of a scalar, as written and unquoted
	line, col int
	items     []*node // of a list
	entries   []entry // of a mapping
}

// entry is one key of a mapping.
type entry struct {
	name      string
	line, col int
	value     *node
}

// describe says what a node is, for messages.
func (n *node) describe() string {
	switch n.kind {
	case kindNull:
		return "nothing (null)"
	case kindList, kindMap:
		return "a " + string(n.kind)
	case kindText:
		return fmt.Sprintf("text %q", clip(n.text))
	default:
		return string(n.kind) + " " + clip(n.text)
	}
}

// reader turns YAML text into nodes and collects what is wrong with it.
type reader struct {
	file string
	errs []*Error
}

// read returns the one document in data, or nil after a syntax error.
func (r *reader) read(data []byte) *node {
	if len(data) > maxBytes {
		r.fail("", nil, fmt.Sprintf("%d bytes", len(data)), fmt.Sprintf("at most %d bytes", maxBytes), "the spec is too long")
		return nil
	}
	if !utf8.Valid(data) {
		r.fail("", nil, "bytes of another encoding", "UTF-8 text", "not valid YAML")
		return nil
	}
	tokens := lexer.Tokenize(string(data))
	if tk := tooDeep(tokens); tk != nil {
		r.fail("", tk, "", fmt.Sprintf("at most %d levels", maxNesting), "lists and mappings are nested too deep")
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			r.fail("", syntax.GetToken(), "", "", "not valid YAML: "+syntax.GetMessage())
		} else {
			r.fail("", nil, "", "", "not valid YAML: "+err.Error())
		}
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body != nil:
			r.fail("", doc.Start, "a second document", "one document", "a file holds one experiment")
			return nil
		default:
			body = doc.Body
		}
	}
	if body == nil {
		r.fail("", nil, "an empty document", "a mapping with the keys apiVersion, kind, metadata and spec", "")
		return nil
	}
	return r.node(body, "")
}

// tooDeep returns the token at which brackets or markers on one line pass maxNesting, or nil.
func tooDeep(tokens token.Tokens) *token.Token {
	depth, dashes, line := 0, 0, 0
	for _, tk := range tokens {
		if tk.Position.Line != line {
			line, dashes = tk.Position.Line, 0
		}
		switch tk.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
			dashes++
		}
		if depth+dashes > maxNesting {
			return tk
		}
	}
	return nil
}

func (r *reader) fail(path string, tk *token.Token, found, want, msg string) {
	e := &Error{File: r.file, Line: 1, Column: 1, Path: path, Found: found, Want: want, Msg: msg}
	if tk != nil && tk.Position != nil {
		e.Line, e.Column = tk.Position.Line, tk.Position.Column
	}
	r.errs = append(r.errs, e)
}

// node converts n; what has no place in a spec is reported and becomes null.
func (r *reader) node(n ast.Node, path string) *node {
	out := &node{kind: kindNull}
	tk := n.GetToken()
	if tk != nil && tk.Position != nil {
		out.line, out.col = tk.Position.Line, tk.Position.Column
	}
	scalar := func(k kind, text string) *node {
		out.kind, out.text = k, text
		return out
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return out
	case *ast.BoolNode:
		return scalar(kindBool, fmt.Sprint(n.Value))
	case *ast.IntegerNode:
		return scalar(kindInt, tk.Value)
	case *ast.FloatNode:
		return scalar(kindFloat, tk.Value)
	case *ast.InfinityNode, *ast.NanNode:
		return scalar(kindFloat, tk.Value)
	case *ast.StringNode:
		if tk.Type == token.StringType && coreFloat.MatchString(n.Value) {
			return scalar(kindFloat, n.Value) // the parser takes 3e-3 for text
		}
		return scalar(kindText, n.Value)
	case *ast.LiteralNode:
		return scalar(kindText, n.Value.Value)
	case *ast.SequenceNode:
		out.kind = kindList
		for i, v := range n.Values {
			out.items = append(out.items, r.node(v, element(path, i)))
		}
		return out
	case *ast.MappingNode:
		return r.mapping(out, n.Values, path)
	case *ast.MappingValueNode:
		return r.mapping(out, []*ast.MappingValueNode{n}, path)
	case *ast.AnchorNode, *ast.AliasNode:
		r.fail(path, tk, "an anchor or alias", "the value written out", "anchors and aliases are not accepted")
	case *ast.TagNode:
		r.fail(path, tk, "tag "+clip(tk.Value), "the value alone", "tags are not accepted")
	case *ast.DirectiveNode:
		r.fail(path, tk, "a directive", "a mapping", "directives are not accepted")
	default:
		r.fail(path, tk, n.Type().String(), "a value", "this form of YAML is not accepted")
	}
	return out
}

func (r *reader) mapping(out *node, values []*ast.MappingValueNode, path string) *node {
	out.kind = kindMap
	seen := map[string]entry{}
	for i, v := range values {
		tk := v.Key.GetToken()
		if i == 0 {
			out.line, out.col = tk.Position.Line, tk.Position.Column
		}
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			r.fail(path, tk, clip(tk.Value), "a plain key", "a key of a mapping is text")
			continue
		}
		e := entry{name: key.Value, line: tk.Position.Line, col: tk.Position.Column}
		if first, dup := seen[e.name]; dup {
			r.fail(member(path, e.name), tk, e.name, "each key once", fmt.Sprintf("duplicate key %q; it was first written at %d:%d", clip(e.name), first.line, first.col))
			r.errs[len(r.errs)-1].stray = true
			continue
		}
		seen[e.name] = e
		e.value = r.node(v.Value, member(path, e.name))
		out.entries = append(out.entries, e)
	}
	return out
}
