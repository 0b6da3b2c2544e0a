package apikeys

import (
	"slices"
	"strings"

	"github.com/better-compute/bcd/internal/fault"
)

// All is the entry that lets a key do everything.
const All = "compute:*"

// MaxActions is how many entries a key may have.
const MaxActions = 64

// Covers reports whether a list of entries lets its holder do what an entry names. An entry is an action, or a prefix that
// ends in ":*", which is every action that starts so, those of a later version too. Hence a prefix is covered by the same
// or a shorter one only, never by all the actions that it is now.
func Covers(entries []string, entry string) bool {
	for _, e := range entries {
		prefix, wild := strings.CutSuffix(e, "*")
		if e == entry || wild && strings.HasSuffix(prefix, ":") && strings.HasPrefix(entry, prefix) {
			return true
		}
	}
	return false
}

// checkActions refuses a list that is none: each entry is an action that exists, or a prefix of some.
func checkActions(entries, known []string) error {
	if len(entries) == 0 || len(entries) > MaxActions {
		return invalid("actions must name 1 to %d actions", MaxActions)
	}
	for i, e := range entries {
		switch {
		case slices.Contains(entries[:i], e):
			return invalid("actions names %q twice", e)
		case !slices.Contains(known, e) && !isPrefix(e, known):
			return fault.New(fault.InvalidArgument, `name an action, or a prefix of some with ":*", "compute:nodes:*" for instance`,
				"actions[%d] is %q, which is no action", i, e)
		}
	}
	return nil
}

func isPrefix(entry string, known []string) bool {
	return strings.HasSuffix(entry, ":*") && slices.ContainsFunc(known, func(k string) bool { return Covers([]string{entry}, k) })
}
