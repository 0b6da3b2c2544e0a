package controlplane_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/pin"
)

// What the server writes for bcd is what bcd reads.
func TestDaemonConfig(t *testing.T) {
	bundle, err := pki.New("compute.example.com", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		dir        string
		first      controlplane.Config
		sites      []string
		serverName string
		socket     bool
	}{
		"as it comes":         {dir: "d", socket: true},
		"a gateway elsewhere": {dir: "d", first: controlplane.Config{Gateway: controlplane.GatewayConfig{URL: "https://gw.eu.example.com", ServerName: "other.example.com"}}, serverName: "other.example.com", socket: true},
		"one of its sites":    {dir: "d", sites: []string{store.NewID(store.PrefixSite, time.Unix(0, 0))}, socket: true},
		"too deep a folder":   {dir: strings.Repeat("d", 107)},
	} {
		t.Run(name, func(t *testing.T) {
			test.first.API.Listen, test.first.Gateway.Listen = "127.0.0.1:0", "127.0.0.1:0"
			// Not t.TempDir, whose length depends on the test's name: a socket's path must fit.
			root, err := os.MkdirTemp("", "bc")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(root); err != nil {
					t.Error(err)
				}
			})
			s, err := controlplane.New(t.Context(), controlplane.Options{
				Dir: filepath.Join(root, test.dir), Bundle: bundle, FirstConfig: test.first, GatewaySites: test.sites,
				Now: time.Now, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			var path string
			for range 2 { // every start writes it again
				if path, err = s.WriteDaemonConfig(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			got, err := config.Load(config.Options{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			pins := bundle.Public().Pins()
			want := map[string]any{
				"url": s.Config().Gateway.URL, "serving": pin.Set{pins.ServingCA}, "signing": pin.Set{pins.JoinSigning},
				"encryption": pin.Set{pins.JoinEncryption}, "data": filepath.Join(filepath.Dir(path), "state"),
			}
			have := map[string]any{
				"url": got.Gateway.URL, "serving": got.ServingCA, "signing": got.JoinSigning,
				"encryption": got.JoinEncryption, "data": got.DataDir,
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Error(diff)
			}
			if test.serverName != "" && got.Gateway.ServerName != test.serverName {
				t.Errorf("server name %q", got.Gateway.ServerName)
			}
			if test.socket != (got.Status.Socket == filepath.Join(filepath.Dir(path), "status.sock")) {
				t.Errorf("socket %q", got.Status.Socket)
			}
			if len(test.sites) > 0 && got.Site != test.sites[0] || len(test.sites) == 0 && store.CheckID(store.PrefixSite, got.Site) != nil {
				t.Errorf("site %q", got.Site)
			}
			key, found, err := config.LoadJoinKey(got.JoinKeyDir(), got.JoinEncryption)
			if err != nil || !found {
				t.Errorf("join key %v: found %v, %v", key, found, err)
			}
		})
	}
}
