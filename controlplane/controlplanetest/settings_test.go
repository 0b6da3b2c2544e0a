package controlplanetest_test

import (
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/internal/fault"
)

// join.cert_ttl_seconds, gateway.refused_per_second and gateway.refused_burst of server.toml reach a machine.
func TestSettingsThatMachinesMeet(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 10 * time.Minute, RefusedPerSecond: 1, RefusedBurst: 3})
	leaf := newMachine(t, cp).mustJoin().leaf()
	if life := leaf.NotAfter.Sub(leaf.NotBefore); life != 10*time.Minute {
		t.Errorf("the certificate lives %v", life)
	}
	m := newMachine(t, cp)
	var codes []fault.Code
	for range 5 {
		codes = append(codes, codeOf(m.join(cp.GatewayURL, "bcjt_jt_x.nonsense")))
	}
	if codes[0] != fault.AccessDenied || codes[2] != fault.AccessDenied || codes[4] != fault.RateLimited {
		t.Errorf("five bad joins: %v", codes)
	}
}
