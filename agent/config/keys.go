package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/better-compute/bcd/internal/fault"
)

// known is every key of config.toml. A name with a dot is a key of a table.
var known = []string{
	"gateway_url", "site", "serving_ca_spki_pin", "join_signing_key_pin", "join_encryption_key_pin",
	"gateway_server_name", "data_dir", "host_root",
	"tpm.mode", "tpm.device", "tpm.ek", "tpm.endorsement_auth_file", "tpm.owner_auth_file", "tpm.auto_rejoin",
	"helper.user", "helper.socket",
	"log.level", "log.format",
	"metrics.listen",
	"status.socket",
	"hardware.placeholders",
}

// position is a place in the file, both numbers from 1; the column counts bytes.
type position struct{ line, column int }

func (p position) String() string { return fmt.Sprintf("line %d, column %d", p.line, p.column) }

// positions says where each key of the file stands.
type positions map[string]position

// at returns an error about a key, with its place.
func (p positions) at(key, hint, format string, args ...any) error {
	where := ""
	if pos, found := p[key]; found {
		where = pos.String() + ": "
	}
	return fault.New(fault.Config, hint, "%s%s", where, fmt.Sprintf(format, args...))
}

// walk finds all keys of a TOML document and refuses the first one that is not known. It compares exact names: go-toml
// would take "Site" for "site", and the last one where both are there.
func walk(document []byte) (positions, error) {
	var p unstable.Parser
	p.Reset(document)
	found := positions{}
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			name, pos := path(&p, nil, e)
			if !isTable(strings.Join(name, ".")) {
				return nil, unknown(strings.Join(name, "."), pos, true)
			}
			table = name
		case unstable.KeyValue:
			if err := found.add(&p, table, e); err != nil {
				return nil, err
			}
		}
	}
	return found, nil // what is no TOML is the decoder's to tell
}

// add notes a key, and those of the inline table that it may hold.
func (f positions) add(p *unstable.Parser, table []string, e *unstable.Node) error {
	name, pos := path(p, table, e)
	key := strings.Join(name, ".")
	if e.Value().Kind == unstable.InlineTable && isTable(key) {
		for c := e.Value().Children(); c.Next(); {
			if err := f.add(p, name, c.Node()); err != nil {
				return err
			}
		}
		return nil
	}
	if !slices.Contains(known, key) && !isTable(key) {
		if e.Value().Kind == unstable.InlineTable {
			return unknown(key, pos, true)
		}
		if first, _, dotted := strings.Cut(key, "."); dotted && !isTable(first) && !slices.Contains(known, first) {
			return unknown(first, pos, true)
		}
		return unknown(key, pos, false)
	}
	f[key] = pos
	return nil
}

// path returns the full name of a key or a table, and where it stands.
func path(p *unstable.Parser, table []string, e *unstable.Node) ([]string, position) {
	name := slices.Clone(table)
	var pos position
	for k := e.Key(); k.Next(); {
		if pos.line == 0 {
			start := p.Shape(k.Node().Raw).Start
			pos = position{start.Line, start.Column}
		}
		name = append(name, string(k.Node().Data))
	}
	return name, pos
}

func isTable(name string) bool {
	return slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(k, name+".") })
}

// unknown returns the error for a key that is not known, with a hint that names what may have been meant.
func unknown(key string, pos position, table bool) error {
	what, shown := "key", key
	if table {
		what, shown = "table", "["+key+"]"
	}
	return fault.New(fault.Config, meant(key, table), "%s: unknown %s %q", pos, what, shown)
}

// meant returns the hint for an unknown key or table.
func meant(key string, isTableName bool) string {
	var candidates []string
	if isTableName {
		for _, k := range known {
			if t, _, found := strings.Cut(k, "."); found && !slices.Contains(candidates, t) {
				candidates = append(candidates, t)
			}
		}
		if best, ok := nearest(key, candidates); ok {
			return fmt.Sprintf("write [%s]", best)
		}
		return "remove it; the tables are [" + strings.Join(candidates, "], [") + "]"
	}
	leaf := key[strings.LastIndexByte(key, '.')+1:]
	// The right name in the wrong table: TOML has no way back out of a table.
	for _, k := range known {
		switch {
		case k == leaf:
			return fmt.Sprintf("move %q above the first [table]", leaf)
		case strings.HasSuffix(k, "."+leaf) && !strings.Contains(key, "."):
			return fmt.Sprintf("move %q below [%s]", leaf, strings.TrimSuffix(k, "."+leaf))
		}
	}
	if best, ok := nearest(key, known); ok {
		return fmt.Sprintf("write %s", best[strings.LastIndexByte(best, '.')+1:])
	}
	if best, ok := nearest(leaf, known); ok {
		return fmt.Sprintf("write %s, above the first [table]", best)
	}
	table, _, inTable := strings.Cut(key, ".")
	for _, k := range known {
		t, name, dotted := strings.Cut(k, ".")
		switch {
		case inTable && dotted && t == table:
			candidates = append(candidates, name)
		case !inTable && !dotted:
			candidates = append(candidates, k)
		}
	}
	return "remove it; the keys here are " + strings.Join(candidates, ", ")
}

// nearest returns the candidate that s is most likely a misspelling of, if any.
func nearest(s string, candidates []string) (string, bool) {
	s = strings.ToLower(strings.ReplaceAll(s, "-", "_"))
	best, least := "", 1+max(2, 2*len(s)/5)
	for _, c := range candidates {
		d := distance(s, c)
		if len(s) > 3 && strings.HasPrefix(c, s) {
			d = 1 // a name that was cut is a likely mistake, however long the rest
		}
		if d < least {
			best, least = c, d
		}
	}
	return best, best != ""
}

// distance is Levenshtein's: the number of bytes to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
