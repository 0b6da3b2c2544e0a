//go:build !fakehw

package hwclaims

import "github.com/better-compute/bcd/internal/fault"

// FakeHardware says that this is a development build that may read its hardware from a profile.
const FakeHardware = false

func readProfile(path string) (facts, error) {
	return facts{}, fault.New(fault.Config, "build with the tag fakehw, or leave the profile out",
		"cannot use machine profile %q: this build reads real hardware only", path)
}
