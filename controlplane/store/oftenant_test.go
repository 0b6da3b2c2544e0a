package store_test

import (
	"errors"
	"testing"

	"github.com/better-compute/bcd/controlplane/store"
)

// To one tenant the pools and sites of another do not exist: the answer is the one about an id that was never given out.
func TestWhatAnotherTenantHasDoesNotExist(t *testing.T) {
	s := open(t)
	seed(t, s)
	const other, nothing = "tn_01k5w0000000000000000000t2", "x"
	read(t, s, func(tx *store.Tx) error {
		pool, err := tx.PoolOfTenant(tenantID, poolID)
		if err != nil || pool.ID != poolID {
			t.Errorf("its pool: %+v, %v", pool, err)
		}
		site, err := tx.SiteOfTenant(tenantID, siteID)
		if err != nil || site.ID != siteID {
			t.Errorf("its site: %+v, %v", site, err)
		}
		for _, c := range [][3]string{{other, poolID, siteID}, {tenantID, nothing, nothing}, {"", poolID, siteID}} {
			if pool, err := tx.PoolOfTenant(c[0], c[1]); !errors.Is(err, store.ErrNotFound) || pool.ID != "" {
				t.Errorf("the pool %q to %q: %+v, %v", c[1], c[0], pool, err)
			}
			if site, err := tx.SiteOfTenant(c[0], c[2]); !errors.Is(err, store.ErrNotFound) || site != (store.Site{}) {
				t.Errorf("the site %q to %q: %+v, %v", c[2], c[0], site, err)
			}
		}
		return nil
	})
}
