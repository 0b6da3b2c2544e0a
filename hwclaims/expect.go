package hwclaims

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Expect binds a join token to one machine: every identifier it names must be among the machine's claims.
type Expect struct {
	ProductUUID string `json:"productUuid,omitempty"`
	// Serial is a product, board, chassis or device tree serial.
	Serial string `json:"serial,omitempty"`
	// MAC is written aa:bb:cc:dd:ee:ff.
	MAC string `json:"mac,omitempty"`
	// GPUUUID starts with GPU-.
	GPUUUID string `json:"gpuUuid,omitempty"`
}

// ValidateExpect reports what is wrong with an expect binding that is about to be recorded. A value that is well formed
// and that no machine can match, such as a placeholder, is not an error here: the join is refused.
func ValidateExpect(e Expect) error {
	if e == (Expect{}) {
		return errors.New("expect names no identifier")
	}
	for _, f := range []struct{ name, value string }{
		{"productUuid", e.ProductUUID}, {"serial", e.Serial}, {"mac", e.MAC}, {"gpuUuid", e.GPUUUID},
	} {
		if err := validText(f.value, MaxText); err != nil {
			return fmt.Errorf("expect.%s %w", f.name, err)
		}
	}
	if e.ProductUUID != "" {
		if _, ok := NormalizeUUID(e.ProductUUID); !ok {
			return fmt.Errorf("expect.productUuid %q is not a UUID", e.ProductUUID)
		}
	}
	if e.Serial != "" && NormalizeSerial(e.Serial) == "" {
		return fmt.Errorf("expect.serial %q is blank", e.Serial)
	}
	if e.MAC != "" {
		if m, ok := NormalizeMAC(e.MAC); !ok || !strings.EqualFold(m, e.MAC) {
			return fmt.Errorf("expect.mac %q is not of the form aa:bb:cc:dd:ee:ff", e.MAC)
		}
	}
	if e.GPUUUID != "" && (len(e.GPUUUID) <= len(gpuPrefix) || !strings.EqualFold(e.GPUUUID[:len(gpuPrefix)], gpuPrefix)) {
		return fmt.Errorf("expect.gpuUuid %q does not start with GPU-", e.GPUUUID)
	}
	return nil
}

// Match reports whether every identifier that e names survives among the machine's claims. Both sides are normalised
// first, and a placeholder matches nothing. An empty e matches nothing.
//
// A product UUID also matches in SMBIOS's other byte order (the first three groups reversed): inventories taken through a
// BMC, or from an older kernel, print it that way.
func (e Expect) Match(c Claims) bool {
	if e == (Expect{}) {
		return false
	}
	s := Assess(c).Survivors
	if e.ProductUUID != "" {
		u, ok := parseUUID(e.ProductUUID)
		if !ok || !slices.Contains(s.ProductUUID, formatUUID(u)) && !slices.Contains(s.ProductUUID, formatUUID(swapUUID(u))) {
			return false
		}
	}
	if e.Serial != "" {
		serials := slices.Concat(s.ProductSerial, s.BoardSerial, s.ChassisSerial, s.DeviceTreeSerial)
		if !slices.Contains(serials, NormalizeSerial(e.Serial)) {
			return false
		}
	}
	if e.MAC != "" {
		if m, ok := NormalizeMAC(e.MAC); !ok || !slices.Contains(s.MACs, m) {
			return false
		}
	}
	if e.GPUUUID != "" {
		if g, ok := NormalizeGPU(e.GPUUUID); !ok || !slices.Contains(s.GPUUUIDs, g) {
			return false
		}
	}
	return true
}

// swapUUID returns the UUID with the first three groups in the other byte order.
func swapUUID(u [16]byte) [16]byte {
	slices.Reverse(u[0:4])
	slices.Reverse(u[4:6])
	slices.Reverse(u[6:8])
	return u
}
