package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/better-compute/bcd/internal/fault"
)

// MaxBody is the size limit of a request's body, in bytes.
const MaxBody = 64 << 10

// invalid is the error of a request that does not follow the method's schema.
func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidArgument, "", format, args...)
}

// decode reads exactly one JSON object into the struct that dst points to. Field names are matched as spelled, a field
// without omitempty in its tag is required, and null is no value.
//
// encoding/json alone takes the last of two equal keys and matches names in any case, so the shape is checked first, on
// the tokens, against the same struct.
func decode(body []byte, dst any) error {
	if !utf8.Valid(body) {
		return invalid("the request is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	s := shape{tokens: d}
	if err := s.value("", reflect.TypeOf(dst).Elem()); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid("the request has more than one JSON value")
	}

	err := json.Unmarshal(body, dst)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return invalid("field %q must be %s", wrong.Field, kindName(wrong.Type))
	case err != nil:
		return invalid("the request is not valid JSON: %w", err)
	}
	return nil
}

// shape walks a JSON text beside the Go type that it will be read into. It goes no deeper than the type does.
type shape struct{ tokens *json.Decoder }

func (s shape) next() (json.Token, error) {
	t, err := s.tokens.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, invalid("the request is not complete JSON")
	case err != nil:
		return nil, invalid("the request is not valid JSON: %w", err)
	}
	return t, nil
}

// value checks the next value. path is the field's name, empty for the request itself; t is its Go type.
func (s shape) value(path string, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := s.next()
	if err != nil {
		return err
	}
	switch {
	case token == json.Delim('{') && t.Kind() == reflect.Struct:
		return s.object(path, t)
	case token == json.Delim('[') && t.Kind() == reflect.Slice:
		for i := 0; s.tokens.More(); i++ {
			if err := s.value(fmt.Sprintf("%s[%d]", path, i), t.Elem()); err != nil {
				return err
			}
		}
		_, err := s.next()
		return err
	case path == "":
		return invalid("the request must be a JSON object")
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Slice, token == json.Delim('{'), token == json.Delim('['), token == nil:
		return invalid("field %q must be %s", path, kindName(t))
	}
	return nil // a scalar; json.Unmarshal checks which
}

// object checks the rest of an object whose brace is read.
func (s shape) object(path string, t reflect.Type) error {
	fields := fieldsOf(t)
	seen := make(map[string]bool, len(fields))
	for s.tokens.More() {
		token, err := s.next()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok {
			return invalid("the request is not valid JSON: an object's key is not a string")
		}
		name := strings.TrimPrefix(path+"."+key, ".")
		field, known := fields[key]
		switch {
		case !known:
			return invalid("unknown field %q", name)
		case seen[key]:
			return invalid("field %q is given twice", name)
		}
		seen[key] = true
		if err := s.value(name, field.typ); err != nil {
			return err
		}
	}
	if _, err := s.next(); err != nil {
		return err
	}
	for i := range t.NumField() {
		name, field := fieldOf(t.Field(i))
		if field.required && !seen[name] {
			return invalid("field %q is required", strings.TrimPrefix(path+"."+name, "."))
		}
	}
	return nil
}

type field struct {
	typ      reflect.Type
	required bool
}

func fieldsOf(t reflect.Type) map[string]field {
	fields := make(map[string]field, t.NumField())
	for i := range t.NumField() {
		name, f := fieldOf(t.Field(i))
		fields[name] = f
	}
	return fields
}

func fieldOf(f reflect.StructField) (name string, _ field) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, field{typ: f.Type, required: options != "omitempty"}
}

// kindName says in words what a field takes.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "an array"
	default:
		return "an object"
	}
}
