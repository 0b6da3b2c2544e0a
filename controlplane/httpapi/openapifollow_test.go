package httpapi_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/docs"
)

// Whatever the tests of this package send and get is held to the OpenAPI document, by a validator that knows nothing of
// this package: what the server takes and answers is what the document says. A method that no test calls with success
// fails the package.

var followed struct {
	mu     sync.Mutex
	well   map[string]bool // methods that answered well
	strict func() (*openapi3.T, error)
}

func TestMain(m *testing.M) {
	followed.well = map[string]bool{}
	followed.strict = sync.OnceValues(func() (*openapi3.T, error) { return load(strictly(docs.OpenAPI)) })
	status := m.Run()
	if all := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" && !*update; status == 0 && all {
		for _, name := range httpapi.Methods() {
			if !followed.well[name] {
				fmt.Fprintf(os.Stderr, "no test calls %s with success\n", name)
				status = 1
			}
		}
	}
	os.Exit(status)
}

// load reads a document and checks it against the specification.
func load(text []byte) (*openapi3.T, error) {
	d, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	return d, d.Validate(context.Background())
}

// strictly is the document with every object closed: an answer must not have a field that the document leaves out.
func strictly(text []byte) []byte {
	var d object
	if err := json.Unmarshal(text, &d); err != nil {
		panic(err)
	}
	for _, schema := range d["components"].(object)["schemas"].(object) {
		schema.(object)["additionalProperties"] = false
	}
	strict, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return strict
}

// exchange is one call of a method, as the validator sees it.
type exchange struct {
	request *openapi3filter.RequestValidationInput
	answer  *openapi3filter.ResponseValidationInput
}

func exchangeOf(d *openapi3.T, path, body string, a answer) (exchange, error) {
	item := d.Paths.Value(path)
	if item == nil {
		return exchange{}, fmt.Errorf("%s is not in the document", path)
	}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, httpapi.DefaultBasePath+path, strings.NewReader(body))
	if err != nil {
		return exchange{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	request := &openapi3filter.RequestValidationInput{
		Request: r,
		Route:   &routers.Route{Spec: d, Server: d.Servers[0], Path: path, PathItem: item, Method: http.MethodPost, Operation: item.Post},
		Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, SkipSettingDefaults: true,
		},
	}
	return exchange{request, (&openapi3filter.ResponseValidationInput{
		RequestValidationInput: request, Status: a.status, Header: a.header, Options: request.Options,
	}).SetBodyBytes([]byte(a.body))}, nil
}

// follow holds a call of a method to the document: a request that was taken is a good one, and any answer is.
func follow(t *testing.T, method, body string, a answer) {
	t.Helper()
	d, err := followed.strict()
	if err != nil {
		t.Fatalf("the document does not follow OpenAPI: %v", err)
	}
	e, err := exchangeOf(d, "/"+strings.ReplaceAll(method, ".", "/"), body, a)
	if err != nil {
		return // no method at all: what http_test.go tries
	}
	if a.status == http.StatusOK {
		if err := openapi3filter.ValidateRequest(t.Context(), e.request); err != nil {
			t.Errorf("%s took a request that the document refuses: %v\n%s", method, err, body)
		}
		followed.mu.Lock()
		followed.well[method] = true
		followed.mu.Unlock()
	}
	if err := openapi3filter.ValidateResponse(t.Context(), e.answer); err != nil {
		t.Errorf("%s answers what the document does not say: %v\n%s", method, err, a.body)
	}
}

// The validator can fail.
func TestFollowFindsWhatIsWrong(t *testing.T) {
	d, err := followed.strict()
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	good := fmt.Sprintf(`{"tenantId":%q}`, f.tenant)
	header := http.Header{"Content-Type": {"application/json"}}
	for _, test := range []struct {
		name, method, body string
		answer             answer
		requestOK, ok      bool
	}{
		{"good", "/sites/list", good, answer{200, header, `{"items":[]}`}, true, true},
		{"unknown field", "/sites/list", good[:len(good)-1] + `,"x":1}`, answer{200, header, `{"items":[]}`}, false, true},
		{"missing field", "/sites/list", `{}`, answer{200, header, `{"items":[]}`}, false, true},
		{"no id", "/sites/list", `{"tenantId":"x"}`, answer{200, header, `{"items":[]}`}, false, true},
		{"null", "/sites/list", good[:len(good)-1] + `,"limit":null}`, answer{200, header, `{"items":[]}`}, false, true},
		{"answer of another type", "/sites/list", good, answer{200, header, `{"items":{}}`}, true, false},
		{"answer with more", "/sites/list", good, answer{200, header, `{"items":[],"more":1}`}, true, false},
		{"answer with a null", "/sites/list", good, answer{200, header, `{"items":null}`}, true, false},
		{"unknown code", "/sites/list", good, answer{400, header, `{"code":"X","message":"m"}`}, true, false},
		{"unknown status", "/sites/list", good, answer{418, header, `{"code":"FAILED","message":"m"}`}, true, false},
	} {
		e, err := exchangeOf(d, test.method, test.body, test.answer)
		if err != nil {
			t.Fatal(err)
		}
		if err := openapi3filter.ValidateRequest(t.Context(), e.request); (err == nil) != test.requestOK {
			t.Errorf("%s: request: %v", test.name, err)
		}
		if err := openapi3filter.ValidateResponse(t.Context(), e.answer); (err == nil) != test.ok {
			t.Errorf("%s: answer: %v", test.name, err)
		}
	}
}

// Whatever the document refuses in a field the server refuses, and what stands at a limit it takes.
func TestLimitsOfTheDocumentAreTheServers(t *testing.T) {
	var d object
	if err := json.Unmarshal(docs.OpenAPI, &d); err != nil {
		t.Fatal(err)
	}
	schemas := d["components"].(object)["schemas"].(object)
	checked := 0
	f := newFixture(t)
	for name, good := range f.requests() {
		request, _ := httpapi.MethodTypes(name)
		for field, s := range schemas[request.Name()].(object)["properties"].(object) {
			bad, edge := valuesOf(s.(object))
			for _, v := range bad {
				checked++
				in := object{}
				for key, value := range good {
					in[key] = value
				}
				in[field] = v
				if a := f.call(name, in); a.status != http.StatusBadRequest {
					t.Errorf("%s takes %.60v as %s: status %d %s", name, v, field, a.status, a.body)
				}
			}
			for _, v := range edge {
				checked++
				// A fresh idempotency key each, so that nothing is a repeat.
				in := with(good, field, v)
				if _, has := in["idempotencyKey"]; has && field != "idempotencyKey" {
					in["idempotencyKey"] = fmt.Sprintf("%s-%s-%.20v", name, field, v)
				}
				if a := f.call(name, in); a.status == http.StatusBadRequest {
					t.Errorf("%s refuses %.60v as %s: %s", name, v, field, a.body)
				}
			}
		}
	}
	if checked < 150 {
		t.Errorf("only %d values tried", checked)
	}
}

// valuesOf returns values of a field that its schema refuses, and some at its limits that it does not.
func valuesOf(s object) (bad, edge []any) {
	number := func(key string, step float64) {
		if n, ok := s[key].(float64); ok {
			bad, edge = append(bad, int64(n+step)), append(edge, int64(n))
		}
	}
	number("minimum", -1)
	number("maximum", 1)
	if n, ok := s["maxLength"].(float64); ok {
		bad, edge = append(bad, strings.Repeat("x", int(n)+1)), append(edge, strings.Repeat("x", int(n)))
	}
	if n, ok := s["minLength"].(float64); ok {
		bad, edge = append(bad, strings.Repeat("x", int(n)-1)), append(edge, strings.Repeat("x", int(n)))
	}
	if _, ok := s["pattern"]; ok {
		bad = append(bad, "not one", "-")
	}
	if values, ok := s["enum"].([]any); ok {
		bad, edge = append(bad, "not one", "", strings.ToUpper(values[0].(string))), append(edge, values...)
	}
	if s["format"] == "date-time" {
		bad, edge = append(bad, "yesterday"), append(edge, "2026-11-29T11:06:11Z")
	}
	switch s["type"] {
	case "string":
		bad = append(bad, 7, true, []any{}, object{}, nil)
	case "integer":
		bad = append(bad, "7", 1.5, true, []any{}, nil)
	case "boolean":
		bad = append(bad, "true", 1, nil)
	case "array":
		bad = append(bad, "x", object{}, nil)
	}
	return bad, edge
}
