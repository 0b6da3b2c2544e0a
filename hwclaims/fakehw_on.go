//go:build fakehw

package hwclaims

import (
	"os"

	"github.com/better-compute/bcd/hwclaims/profile"
	"github.com/better-compute/bcd/internal/fault"
)

// FakeHardware says that this is a development build that may read its hardware from a profile.
const FakeHardware = true

func readProfile(path string) (facts, error) {
	b, err := os.ReadFile(path) //nolint:gosec // the caller's choice, in a development build
	if err != nil {
		return facts{}, fault.New(fault.Config, "name a readable machine profile", "cannot read machine profile: %w", err)
	}
	m, err := profile.Parse(b)
	if err != nil {
		return facts{}, fault.New(fault.Config, "see testdata/machines for the schema", "cannot use %q: %w", path, err)
	}
	return profileFacts(m), nil
}
