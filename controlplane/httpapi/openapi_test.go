package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/docs"
	"github.com/better-compute/bcd/internal/pin"
)

const openAPIFile = "../../docs/openapi.json"

var update = flag.Bool("update", false, "write "+openAPIFile)

// docs/openapi.json is what the API's types, its table of methods and what its limits come to.
func TestOpenAPIDocument(t *testing.T) {
	var made bytes.Buffer
	e := json.NewEncoder(&made)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(describe(t)); err != nil {
		t.Fatal(err)
	}
	text := made.Bytes()
	if *update {
		if err := os.WriteFile(openAPIFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	committed, err := os.ReadFile(openAPIFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(committed), "\n"), strings.Split(string(text), "\n")); diff != "" {
		t.Errorf("the document is not the API's; run go test ./controlplane/httpapi -run TestOpenAPIDocument -update:\n%s", diff)
	}
}

// Each server says what it is, at the path that it is at.
func TestServedOpenAPIDocument(t *testing.T) {
	f := newFixture(t)
	for base, url := range map[string]string{
		"/api/compute": f.url, "/x": f.serve(httpapi.Options{BasePath: "/x", Version: "1.2.3"}) + "/x",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/openapi.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		got := f.do(request).object(t)
		var want object
		if err := json.Unmarshal(docs.OpenAPI, &want); err != nil {
			t.Fatal(err)
		}
		want["servers"] = []any{object{"url": base}}
		want["info"].(object)["version"] = map[string]string{"/api/compute": "0.1.0", "/x": "1.2.3"}[base]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("at %s: %s", base, diff)
		}
		request.Method = http.MethodPost
		if a := f.do(request); a.status != http.StatusMethodNotAllowed {
			t.Errorf("POST: status %d", a.status)
		}
	}
}

// describer makes the document.
type describer struct {
	t        *testing.T
	comments map[string]string // by type, and by {Go type}.{Go field}
	requests map[string]bool   // names of the types that requests are made of
	schemas  object
	used     map[string]bool // facts
}

// describe returns the document.
func describe(t *testing.T) object {
	t.Helper()
	d := &describer{t: t, comments: comments(t), requests: map[string]bool{}, schemas: object{}, used: map[string]bool{}}
	actions := actionsOfMethods(t)
	paths := object{}
	names := httpapi.Methods()
	slices.Sort(names)
	for _, name := range names {
		if summaries[name] == "" {
			t.Errorf("%s has no summary", name)
		}
		request, answer := httpapi.MethodTypes(name)
		d.mark(request)
		group, _, _ := strings.Cut(name, ".")
		paths["/"+strings.ReplaceAll(name, ".", "/")] = object{"post": object{
			"operationId": name, "tags": []any{group}, "summary": summaries[name],
			"description": fmt.Sprintf("Needs the action `%s` on `%s`.", actions[name].action, actions[name].resource),
			"requestBody": object{"required": true, "content": jsonBody(d.schema(request))},
			"responses":   with(problems("$ref"), "200", object{"description": "Done.", "content": jsonBody(d.schema(answer))}),
		}}
	}
	public := func(summary, id string, schema any) object {
		return object{"get": object{
			"operationId": id, "tags": []any{"public"}, "summary": summary, "security": []any{},
			"responses": object{"200": object{"description": "Done.", "content": jsonBody(schema)}},
		}}
	}
	paths["/.well-known/better-compute"] = public("The control plane's public keys and gateway.", "wellKnown", d.schema(reflect.TypeFor[httpapi.Document]()))
	paths["/openapi.json"] = public("This document.", "openapi", object{"type": "object"})
	d.schema(reflect.TypeFor[httpapi.Problem]())
	for fact := range facts {
		if !d.used[fact] {
			t.Errorf("there is no field %s", fact)
		}
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Better Compute control plane", "version": "0",
			"description": fmt.Sprintf(`Each method is POST {base path}/{group}/{method} with a JSON object of at most %d bytes, Content-Type application/json.

A request is read strictly: a field that the method does not have, has twice or spells in another case is refused, and null is no value. A failure is an object with a code, a message and, where there is something to do, a hint; the code is the contract, the HTTP status follows from it. Answers may get more fields.

What belongs to another tenant does not exist: NOT_FOUND. Texts that come from machines (claims, addresses) are their own word: show them escaped.`, httpapi.MaxBody),
		},
		"servers":  []any{object{"url": httpapi.DefaultBasePath}},
		"security": []any{object{"apiKey": []any{}}},
		"paths":    paths,
		"components": object{
			"schemas":   d.schemas,
			"responses": problems(""),
			"securitySchemes": object{"apiKey": object{
				"type": "http", "scheme": "bearer", "bearerFormat": "bcak_…",
				"description": "An API key, which acts for one tenant and may do what its actions name.",
			}},
		},
	}
}

func jsonBody(schema any) object {
	return object{"application/json": object{"schema": schema}}
}

// problems are the answers of a failed call by the status of their codes: components, or what refers to them.
func problems(as string) object {
	byStatus := map[string][]string{}
	for _, c := range codes {
		status := strconv.Itoa(httpapi.StatusOf(c))
		byStatus[status] = append(byStatus[status], string(c))
	}
	answers := object{}
	for status, codes := range byStatus {
		if as == "$ref" {
			answers[status] = object{"$ref": "#/components/responses/Problem" + status}
			continue
		}
		answers["Problem"+status] = object{
			"description": strings.Join(codes, ", "), "content": jsonBody(object{"$ref": "#/components/schemas/Problem"}),
		}
	}
	return answers
}

// decided is how a method is decided.
type decided struct{ action, resource string }

var idInResource = regexp.MustCompile(`^compute-([a-z-]+)/`)

// actionsOfMethods asks the authorizer.
func actionsOfMethods(t *testing.T) map[string]decided {
	t.Helper()
	f := newFixture(t)
	requests := f.requests()
	all := map[string]decided{}
	for _, name := range httpapi.Methods() {
		f.decisions.asked = nil
		f.call(name, requests[name])
		if len(f.decisions.asked) != 1 {
			t.Fatalf("%s asks for %q", name, f.decisions.asked)
		}
		action, resource, _ := strings.Cut(f.decisions.asked[0], " on ")
		what := map[string]string{"tenant": "tenantId", "site": "siteId", "pool": "poolId", "node": "nodeId", "api-key": "keyId"}
		m := idInResource.FindStringSubmatch(resource)
		if m == nil || what[m[1]] == "" {
			t.Fatalf("%s is decided on %q", name, resource)
		}
		all[name] = decided{action, m[0] + "{" + what[m[1]] + "}"}
	}
	return all
}

// mark notes that a type is part of a request, with all that it is made of.
func (d *describer) mark(t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return
	}
	d.requests[t.Name()] = true
	for i := range t.NumField() {
		d.mark(t.Field(i).Type)
	}
}

// schema returns the schema of a Go type; structs are components.
func (d *describer) schema(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return object{"type": "object"}
	case reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	case reflect.TypeFor[pin.Pin]():
		return object{"type": "string", "pattern": "^sha256/[A-Za-z0-9+/]{43}=$"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.schema(t.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Struct:
		name := componentName(t)
		if _, known := d.schemas[name]; !known {
			d.schemas[name] = nil // a type that holds itself ends here
			d.schemas[name] = d.component(t)
		}
		return object{"$ref": "#/components/schemas/" + name}
	default:
		d.t.Fatalf("a field is %s", t)
		return nil
	}
}

var listOf = regexp.MustCompile(`^List\[.*\.([A-Za-z]+)\]$`)

// componentName is the name of a Go type, List[Node] as NodeList.
func componentName(t reflect.Type) string {
	if m := listOf.FindStringSubmatch(t.Name()); m != nil {
		return m[1] + "List"
	}
	return t.Name()
}

func (d *describer) component(t reflect.Type) object {
	properties, required := object{}, []any{}
	d.fields(t, t, properties, &required)
	c := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		c["required"] = required
	}
	if text := d.comments[strings.SplitN(t.Name(), "[", 2)[0]]; text != "" {
		c["description"] = text
	}
	if d.requests[t.Name()] {
		c["additionalProperties"] = false
	}
	return c
}

// fields adds the fields of t, which is outer or embedded in it.
func (d *describer) fields(t, outer reflect.Type, properties object, required *[]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			d.fields(f.Type, outer, properties, required)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		optional := strings.Contains(options, "omit")
		s := d.schema(f.Type)
		d.used[t.Name()+"."+name] = true
		fact, known := facts[t.Name()+"."+name]
		switch {
		case known:
		case ids[name] != "":
			fact = idOf(ids[name])
		case d.requests[outer.Name()]:
			fact = factsOfNames[name]
		}
		maps.Copy(s, fact)
		if text := d.comments[t.Name()+"."+f.Name]; text != "" {
			s["description"] = text
		}
		if !optional {
			*required = append(*required, name)
		}
		isNull := f.Type.Kind() == reflect.Pointer && !optional || nullable[outer.Name()+"."+name]
		if isNull && !d.requests[outer.Name()] {
			s = orNull(s)
		}
		properties[name] = s
	}
}

// orNull is a schema that also takes null.
func orNull(s object) object {
	if kind, ok := s["type"]; ok {
		s["type"] = []any{kind, "null"}
		return s
	}
	either := object{"anyOf": []any{object{"$ref": s["$ref"]}, object{"type": "null"}}}
	if text, ok := s["description"]; ok {
		either["description"] = text
	}
	return either
}

var reference = regexp.MustCompile(`\[([A-Z][A-Za-z.]*)\]`)

// comments are what the package says of its types and their fields.
func comments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	text := func(g *ast.CommentGroup) string {
		return reference.ReplaceAllString(strings.Join(strings.Fields(g.Text()), " "), "$1")
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				s := spec.(*ast.TypeSpec)
				all[s.Name.Name] = text(g.Doc)
				of, ok := s.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, field := range of.Fields.List {
					for _, name := range field.Names {
						if field.Doc != nil {
							all[s.Name.Name+"."+name.Name] = text(field.Doc)
						}
					}
				}
			}
		}
	}
	return all
}
