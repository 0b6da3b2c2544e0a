package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/agent/session"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/seal"
)

// readyWithin bounds the control plane's start.
const readyWithin = time.Minute

// controlPlane is a running better-compute serve.
type controlPlane struct {
	process *exec.Cmd
	api     *client.Client
	tenant  string
	pool    string
	// daemon is the configuration of a daemon, as the control plane writes it, and joinKey the key to seal to.
	daemon  *config.Config
	joinKey seal.Key
}

func startControlPlane(ctx context.Context, b *bench) (*controlPlane, error) {
	p := b.command(ctx, "better-compute", "serve", "--dir", "cp", "--trust-domain", "bench.example",
		"--listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0", "--log-level", "error")
	p.Env = append(os.Environ(), "BETTER_COMPUTE_SECRET="+rand.Text())
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	c := &controlPlane{process: p}
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "ready" { //nolint:revive // reads on until then
		}
		ready <- lines.Text() == "ready"
	}()
	select {
	case ok := <-ready:
		if !ok {
			return c, errors.New("the control plane ended before it was ready")
		}
	case <-time.After(readyWithin):
		return c, fmt.Errorf("the control plane was not ready within %s", readyWithin)
	case <-ctx.Done():
		return c, context.Cause(ctx)
	}
	return c, c.connect(ctx, filepath.Join(b.dir, "cp"))
}

// connect reads what the control plane wrote for its clients, and asks it for its tenant and pool.
func (c *controlPlane) connect(ctx context.Context, dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "admin.toml"))
	if err != nil {
		return err
	}
	var admin struct {
		URL    string `toml:"url"`
		APIKey string `toml:"api_key"`
	}
	if err := toml.Unmarshal(text, &admin); err != nil {
		return err
	}
	if c.api, err = client.New(admin.URL, admin.APIKey); err != nil {
		return err
	}
	var tenants httpapi.List[httpapi.Tenant]
	if err := c.api.Call(ctx, "tenants.list", httpapi.ListTenants{}, &tenants); err != nil {
		return err
	}
	if len(tenants.Items) != 1 {
		return fmt.Errorf("the control plane has %d tenants, not one", len(tenants.Items))
	}
	c.tenant = tenants.Items[0].ID
	var pools httpapi.List[httpapi.Pool]
	if err := c.api.Call(ctx, "pools.list", httpapi.ListInTenant{TenantID: c.tenant}, &pools); err != nil {
		return err
	}
	if len(pools.Items) != 1 {
		return fmt.Errorf("the control plane has %d pools, not one", len(pools.Items))
	}
	c.pool = pools.Items[0].ID
	if c.daemon, err = config.Load(config.Options{Path: filepath.Join(dir, "bcd", "config.toml")}); err != nil {
		return err
	}
	c.joinKey, err = c.daemon.JoinKey(ctx, "", config.Fetcher{Now: time.Now})
	return err
}

// gateway says where the gateway is.
func (c *controlPlane) gateway() session.Gateway {
	return session.Gateway{Address: c.daemon.Gateway.Address, ServerName: c.daemon.Gateway.ServerName, ServingCA: c.daemon.ServingCA, Now: time.Now}
}

// newToken makes a join token. change, which may be nil, changes the request.
func (b *bench) newToken(ctx context.Context, uses int64, change func(*httpapi.CreateJoinToken)) (string, error) {
	made, err := b.createToken(ctx, uses, change)
	return made.Token, err
}

func (b *bench) createToken(ctx context.Context, uses int64, change func(*httpapi.CreateJoinToken)) (made httpapi.CreatedJoinToken, err error) {
	request := httpapi.CreateJoinToken{
		TenantID: b.server.tenant, PoolID: b.server.pool, TTLSeconds: 3600, MaxUses: &uses, IdempotencyKey: strings.ToLower(rand.Text()),
	}
	if change != nil {
		change(&request)
	}
	if err := b.server.api.Call(ctx, "joinTokens.create", request, &made); err != nil {
		return made, fmt.Errorf("cannot create a token: %w", err)
	}
	return made, nil
}
