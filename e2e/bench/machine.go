package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/better-compute/bcd/e2e/fleet"
)

// machine is one that bcd can join: the files that its hardware is read from, and a configuration.
type machine struct {
	dir, config string
}

// newMachine makes a machine of its own folder.
func (b *bench) newMachine(name string) (machine, error) {
	m := machine{dir: filepath.Join(b.dir, name)}
	m.config = filepath.Join(m.dir, "config.toml")
	hw, err := fleet.NewHardware()
	if err != nil {
		return m, err
	}
	d := b.server.Daemon
	config := fmt.Sprintf(`gateway_url = %q
site = %q
serving_ca_spki_pin = %q
join_signing_key_pin = %q
join_encryption_key_pin = %q
data_dir = %q
host_root = %q
[tpm]
mode = "off"
[status]
socket = %q
`, d.Gateway.URL, d.Site, d.ServingCA[0], d.JoinSigning[0], d.JoinEncryption[0], filepath.Join(m.dir, "state"), filepath.Join(m.dir, "host"),
		filepath.Join(b.sockets, name))
	key, err := os.ReadFile(filepath.Join(b.dir, "cp", "bcd", "join-encryption.jwk"))
	if err != nil {
		return m, err
	}
	for file, content := range map[string]string{
		"config.toml":                              config,
		"join-encryption.jwk":                      string(key),
		"host/etc/hostname":                        name,
		"host/sys/class/dmi/id/sys_vendor":         "Supermicro",
		"host/sys/class/dmi/id/product_name":       "SYS-220U-TNR",
		"host/sys/class/dmi/id/product_uuid":       hw.UUID,
		"host/sys/class/dmi/id/product_serial":     hw.Serial,
		"host/sys/class/net/eth0/address":          hw.MAC,
		"host/sys/class/net/eth0/type":             "1",
		"host/sys/class/net/eth0/device/uevent":    "DRIVER=i40e",
		"host/sys/class/net/eth0/addr_assign_type": "0",
	} {
		path := filepath.Join(m.dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return m, err
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			return m, err
		}
	}
	return m, nil
}

// ran is one run of a program, from exec to exit.
type ran struct {
	took, cpu time.Duration
}

// joinWith runs bcd join with a token on its standard input.
func (b *bench) joinWith(ctx context.Context, m machine, token string) (ran, error) {
	return b.time(ctx, token, "join", "--config", m.config)
}

// version runs bcd version, which does nothing but start and end: what is left of a command when its work is taken away.
func (b *bench) version(ctx context.Context) (ran, error) { return b.time(ctx, "", "version") }

func (b *bench) time(ctx context.Context, input string, args ...string) (ran, error) {
	c := b.command(ctx, "bcd", args...)
	c.Stdin = strings.NewReader(input)
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	begun := time.Now()
	err := c.Run()
	took := time.Since(begun)
	if err != nil {
		return ran{}, fmt.Errorf("bcd %s: %w: %s", args[0], err, output.String())
	}
	return ran{took: took, cpu: c.ProcessState.UserTime() + c.ProcessState.SystemTime()}, nil
}
