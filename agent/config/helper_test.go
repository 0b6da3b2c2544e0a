package config_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/fault"
)

// What a node gets from its helper is its configuration but for the way to the TPM.
// Req: HL-001
func TestNodeParts(t *testing.T) {
	for name, more := range map[string]string{
		"only [helper]": "[helper]\nuser = \"bcd\"\n",
		"all": `gateway_server_name = "gw.example.com"
data_dir = "/srv/bcd"
host_root = "/host"
tpm = { mode = "required", device = "unix:/run/secret/sock", ek = "0x01c0000a", endorsement_auth_file = "/etc/bcd/secret", owner_auth_file = "/etc/bcd/secret2", auto_rejoin = true }
helper = { user = "bcd", socket = "/run/bcd/other.sock" }
log = { level = "debug", format = "json" }
metrics.listen = "unix:/run/bcd/metrics.sock"
status.socket = "/run/bcd/status2.sock"
hardware.placeholders = ["OUR FILLER", "say \"x\""]
`,
		"metrics over TCP": "[helper]\nuser = \"bcd\"\n[metrics]\nlisten = \"127.0.0.1:9464\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := config.Load(config.Options{Path: write(t, document+more)})
			if err != nil {
				t.Fatal(err)
			}
			if whole.Helper.User != "bcd" {
				t.Errorf("the node's user is %q", whole.Helper.User)
			}
			parts, err := whole.NodeParts()
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(parts, []byte("secret")) {
				t.Errorf("the node is told the way to the TPM:\n%s", parts)
			}
			got, err := config.FromHelper(parts, config.Flags{})
			if err != nil {
				t.Fatalf("%v:\n%s", err, parts)
			}
			d := config.Default()
			whole.Path = config.DefaultPath
			whole.TPM.Device, whole.TPM.EK, whole.TPM.EndorsementAuthFile, whole.TPM.OwnerAuthFile = d.TPM.Device, 0, "", ""
			if diff := cmp.Diff(whole, got); diff != "" {
				t.Error(diff)
			}
			got, err = config.FromHelper(parts, config.Flags{DataDir: "/elsewhere"})
			if err != nil || got.DataDir != "/elsewhere" {
				t.Errorf("with a flag: %v, %v", got, err)
			}
		})
	}
	for _, broken := range []string{"", "x", "site = \"site_1\"\n", "\xff", document + "tomorrow = 1\n"} {
		if _, err := config.FromHelper([]byte(broken), config.Flags{}); !fault.Is(err, fault.Config) {
			t.Errorf("%q: %v", broken, err)
		}
	}
}
