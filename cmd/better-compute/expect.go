package main

import (
	"github.com/spf13/pflag"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

// expectFlags are the flags that bind a token to one machine.
type expectFlags struct {
	productUUID, serial, mac, gpuUUID string
}

func (e *expectFlags) addTo(flags *pflag.FlagSet) {
	const only = "admit only the machine with this "
	flags.StringVar(&e.productUUID, "expect-product-uuid", "", only+"product UUID")
	flags.StringVar(&e.serial, "expect-serial", "", only+"product, board or chassis serial")
	flags.StringVar(&e.mac, "expect-mac", "", only+"permanent MAC, aa:bb:cc:dd:ee:ff")
	flags.StringVar(&e.gpuUUID, "expect-gpu-uuid", "", only+"GPU, by its UUID GPU-…")
}

// binding returns the identifiers that were given, nil for none. One that was given empty is kept: the API refuses it, where
// leaving it out would bind the token to less than was meant.
func (e *expectFlags) binding(flags *pflag.FlagSet) *httpapi.Expect {
	given := func(name string, value *string) *string {
		if flags.Changed(name) {
			return value
		}
		return nil
	}
	b := httpapi.Expect{
		ProductUUID: given("expect-product-uuid", &e.productUUID),
		Serial:      given("expect-serial", &e.serial),
		MAC:         given("expect-mac", &e.mac),
		GPUUUID:     given("expect-gpu-uuid", &e.gpuUUID),
	}
	if b == (httpapi.Expect{}) {
		return nil
	}
	return &b
}
