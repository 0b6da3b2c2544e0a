package store

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// jsonOf is a column that holds JSON as text. NULL is T's zero value.
type jsonOf[T any] struct{ v *T }

// Scan implements [database/sql.Scanner]. Unknown fields are an error: they come from a newer program, and to lose them
// at the next write would be silent.
func (d jsonOf[T]) Scan(src any) error {
	var text []byte
	switch s := src.(type) {
	case nil:
		var zero T
		*d.v = zero
		return nil
	case string:
		text = []byte(s)
	case []byte:
		text = s
	default:
		return fmt.Errorf("a JSON column is %T", src)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(d.v)
}

// jsonText is the column of v.
func jsonText(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("cannot encode a JSON column: %w", err)
	}
	return string(b), nil
}

// nullJSON is the column of a list that may be absent: an empty one is NULL.
func nullJSON[T any](list []T) (any, error) {
	if len(list) == 0 {
		return nil, nil //nolint:nilnil // NULL
	}
	return jsonText(list)
}
