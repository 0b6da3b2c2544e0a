package store_test

import (
	"strings"
	"testing"

	"github.com/better-compute/bcd/controlplane/store"
)

// Few that are live are found behind many that are not without reading those.
func TestLiveRowsAreFoundInTheirIndexes(t *testing.T) {
	s := open(t)
	read(t, s, func(tx *store.Tx) error {
		_, _ = tx.TokensOfPool("x", false, "", 1)
		_, _ = tx.TokensOfSite("x", false, "", 1)
		_, _ = tx.APIKeys("x", false, "", 1)
		_, _ = tx.Pools("x", false, "", 1)
		_, _ = tx.NodeByStatement("x")
		return nil
	})
	plans := store.Plans(t, s)
	for index, part := range map[string]string{
		"COVERING INDEX join_tokens_live ":         "WHERE pool_id = ?",
		"COVERING INDEX join_tokens_live_of_site ": "role = 'site'",
		"INDEX api_keys_live ":                     "FROM api_keys",
		"INDEX pools_in_use ":                      "FROM pools",
		"INDEX node_certs_by_statements ":          "WHERE statements = ?",
	} {
		found := false
		for query, steps := range plans {
			if strings.Contains(query, part) {
				found = true
				if all := strings.Join(steps, "; "); !strings.Contains(all, index) {
					t.Errorf("%s\nis run as %s, without %s", query, all, index)
				}
			}
		}
		if !found {
			t.Errorf("no query has %q", part)
		}
	}
}
