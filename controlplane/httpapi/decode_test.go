package httpapi_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/internal/fault"
)

// inner and request have every kind of field that the API's requests have.
type inner struct {
	Serial *string `json:"serial,omitempty"`
	Must   string  `json:"must"`
}

type request struct {
	Name  string   `json:"name"`
	Count *int64   `json:"count,omitempty"`
	Flag  bool     `json:"flag,omitempty"`
	Inner *inner   `json:"inner,omitempty"`
	Tags  []string `json:"tags,omitempty"`
}

func TestDecode(t *testing.T) {
	count, serial := int64(3), "S"
	var got request
	err := httpapi.Decode([]byte(` {"name":"n","count":3,"flag":true,"inner":{"serial":"S","must":"m"},"tags":["a","b"]} `+"\n"), &got)
	if err != nil {
		t.Fatal(err)
	}
	want := request{Name: "n", Count: &count, Flag: true, Inner: &inner{Serial: &serial, Must: "m"}, Tags: []string{"a", "b"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"empty":                 {``, "the request is not complete JSON"},
		"white space":           {"  \n", "the request is not complete JSON"},
		"cut off":               {`{"name":"n"`, "the request is not complete JSON"},
		"cut off in a string":   {`{"name":"n`, "the request is not complete JSON"},
		"not JSON":              {`name=n`, "the request is not valid JSON"},
		"a comment":             {`{"name":"n"/**/}`, "the request is not valid JSON"},
		"a trailing comma":      {`{"name":"n",}`, "the request is not valid JSON"},
		"an array":              {`[]`, "the request must be a JSON object"},
		"a string":              {`"name"`, "the request must be a JSON object"},
		"null":                  {`null`, "the request must be a JSON object"},
		"not UTF-8":             {"{\"name\":\"\xff\"}", "the request is not UTF-8"},
		"two values":            {`{"name":"n"}{"name":"m"}`, "the request has more than one JSON value"},
		"a trailing word":       {`{"name":"n"} x`, "the request has more than one JSON value"},
		"an unknown field":      {`{"name":"n","nome":1}`, `unknown field "nome"`},
		"another case":          {`{"Name":"n"}`, `unknown field "Name"`},
		"an unknown inner one":  {`{"name":"n","inner":{"must":"m","x":1}}`, `unknown field "inner.x"`},
		"a field twice":         {`{"name":"n","name":"m"}`, `field "name" is given twice`},
		"twice by an escape":    {`{"name":"n","n\u0061me":"m"}`, `field "name" is given twice`},
		"an inner field twice":  {`{"name":"n","inner":{"must":"m","must":"m"}}`, `field "inner.must" is given twice`},
		"no required field":     {`{"flag":true}`, `field "name" is required`},
		"no required inner one": {`{"name":"n","inner":{}}`, `field "inner.must" is required`},
		"null for a field":      {`{"name":null}`, `field "name" must be a string`},
		"null for a pointer":    {`{"name":"n","count":null}`, `field "count" must be a whole number`},
		"a number for a string": {`{"name":1}`, `field "name" must be a string`},
		"a string for a number": {`{"name":"n","count":"3"}`, `field "count" must be a whole number`},
		"a fraction":            {`{"name":"n","count":1.5}`, `field "count" must be a whole number`},
		"too large a number":    {`{"name":"n","count":9223372036854775808}`, `field "count" must be a whole number`},
		"a string for a bool":   {`{"name":"n","flag":"true"}`, `field "flag" must be true or false`},
		"a string for a struct": {`{"name":"n","inner":"x"}`, `field "inner" must be an object`},
		"an array for a struct": {`{"name":"n","inner":[]}`, `field "inner" must be an object`},
		"an object for a text":  {`{"name":{}}`, `field "name" must be a string`},
		"a text for a list":     {`{"name":"n","tags":"a"}`, `field "tags" must be an array`},
		"a number in a list":    {`{"name":"n","tags":["a",1]}`, `must be a string`},
		"null in a list":        {`{"name":"n","tags":[null]}`, `field "tags[0]" must be a string`},
	} {
		t.Run(name, func(t *testing.T) {
			var got request
			err := httpapi.Decode([]byte(test.body), &got)
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			if !fault.Is(err, fault.InvalidArgument) {
				t.Errorf("code %q", fault.CodeOf(err))
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q, want %q in it", err, test.want)
			}
		})
	}
}

// What is accepted means the same to encoding/json, field by field, and is spelled as the schema spells it.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"name":"n","count":3,"flag":true,"inner":{"serial":"S","must":"m"},"tags":["a","b"]}`,
		`{"name":"n","name":"m"}`, `{"name":{"name":{}}}`, `{"name":"\ud800"}`, `[[[[[[[[[[[[`, `{"tags":[[[[[[[[[[`, `{"name":"n"}{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got request
		if err := httpapi.Decode(body, &got); err != nil {
			if !fault.Is(err, fault.InvalidArgument) {
				t.Fatalf("code %q of %v", fault.CodeOf(err), err)
			}
			return
		}
		var loose request
		var keys map[string]json.RawMessage
		if json.Unmarshal(body, &loose) != nil || json.Unmarshal(body, &keys) != nil {
			t.Fatalf("accepted what is not JSON: %q", body)
		}
		if !reflect.DeepEqual(got, loose) {
			t.Fatalf("%q: got %+v, encoding/json reads %+v", body, got, loose)
		}
		for key := range keys {
			switch key {
			case "name", "count", "flag", "inner", "tags":
			default:
				t.Fatalf("accepted the key %q", key)
			}
		}
	})
}
