package agent_test

import (
	"crypto/x509"
	"math/big"
	"testing"

	"github.com/better-compute/bcd/agent"
)

// A serial that begins with a zero nibble is spelled as the control plane spells it.
func TestSerialText(t *testing.T) {
	for serial, want := range map[int64]string{0x0f: "f", 0x0a0b: "a0b", 0xa0: "a0"} {
		if got := agent.SerialText(&x509.Certificate{SerialNumber: big.NewInt(serial)}); got != want {
			t.Errorf("serial %x is spelled %q, want %q", serial, got, want)
		}
	}
}
