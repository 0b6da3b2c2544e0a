package seal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// object is the members of a JSON object, by exact name. encoding/json alone would take the last of two equal names
// and match names in any case, so that two readers could see two different headers.
type object map[string]json.RawMessage

// members reads a JSON object (RFC 8259) whose member names are unique.
func members(b []byte) (object, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("not UTF-8")
	}
	if !json.Valid(b) {
		return nil, errors.New("not JSON")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	m := object{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, errors.New("not JSON")
		}
		name, ok := t.(string)
		if !ok {
			return nil, errors.New("not JSON")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errors.New("not JSON")
		}
		if _, found := m[name]; found {
			return nil, fmt.Errorf("member %.64q occurs twice", name)
		}
		m[name] = value
	}
	return m, nil
}

// only refuses members other than the named ones, and asks for each of these.
func (m object) only(names ...string) error {
	for _, name := range names {
		if _, found := m[name]; !found {
			return fmt.Errorf("member %q is missing", name)
		}
	}
	if len(m) == len(names) {
		return nil
	}
	allowed := map[string]bool{}
	for _, name := range names {
		allowed[name] = true
	}
	// Any one of them will do for the message, but always the same one.
	var foreign string
	for name := range m {
		if !allowed[name] && (foreign == "" || name < foreign) {
			foreign = name
		}
	}
	return fmt.Errorf("member %.64q is not allowed", foreign)
}

// text returns a member that is a string.
func (m object) text(name string) (string, error) {
	raw, found := m[name]
	if !found {
		return "", fmt.Errorf("member %q is missing", name)
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", fmt.Errorf("member %q is not a string", name)
	}
	return *s, nil
}
