// Package fleet has machines that exist in memory only, as many as a measurement or a race wants: they speak to a running
// control plane as bcd does, each join over a TLS connection of its own, and keep nothing on a disk.
//
// What bcd itself does is not measured here: that takes its processes.
package fleet

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
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

// Plane is a running better-compute serve, as its clients know it: with the one pool of a first start.
type Plane struct {
	API    *client.Client
	Tenant string
	Pool   string
	// Daemon is the configuration of a daemon, as the control plane writes it, and JoinKey the key to seal to.
	Daemon  *config.Config
	JoinKey seal.Key
}

// Connect reads what the control plane wrote for its clients in its directory, and asks it for its tenant and pool.
func Connect(ctx context.Context, dir string) (*Plane, error) {
	text, err := os.ReadFile(filepath.Join(dir, "admin.toml"))
	if err != nil {
		return nil, err
	}
	var admin struct {
		URL    string `toml:"url"`
		APIKey string `toml:"api_key"`
	}
	if err := toml.Unmarshal(text, &admin); err != nil {
		return nil, err
	}
	p := &Plane{}
	if p.API, err = client.New(admin.URL, admin.APIKey); err != nil {
		return nil, err
	}
	var tenants httpapi.List[httpapi.Tenant]
	if err := p.API.Call(ctx, "tenants.list", httpapi.ListTenants{}, &tenants); err != nil {
		return nil, err
	}
	if len(tenants.Items) != 1 {
		return nil, fmt.Errorf("the control plane has %d tenants, not one", len(tenants.Items))
	}
	p.Tenant = tenants.Items[0].ID
	var pools httpapi.List[httpapi.Pool]
	if err := p.API.Call(ctx, "pools.list", httpapi.ListPools{TenantID: p.Tenant}, &pools); err != nil {
		return nil, err
	}
	if len(pools.Items) != 1 {
		return nil, fmt.Errorf("the control plane has %d pools, not one", len(pools.Items))
	}
	p.Pool = pools.Items[0].ID
	if p.Daemon, err = config.Load(config.Options{Path: filepath.Join(dir, "bcd", "config.toml")}); err != nil {
		return nil, err
	}
	p.JoinKey, err = p.Daemon.JoinKey(ctx, "", config.Fetcher{Now: time.Now})
	return p, err
}

// Gateway says where the gateway is.
func (p *Plane) Gateway() session.Gateway {
	return session.Gateway{Address: p.Daemon.Gateway.Address, ServerName: p.Daemon.Gateway.ServerName, ServingCA: p.Daemon.ServingCA, Now: time.Now}
}

// NewToken makes a join token. change, which may be nil, changes the request.
func (p *Plane) NewToken(ctx context.Context, uses int64, change func(*httpapi.CreateJoinToken)) (made httpapi.CreatedJoinToken, err error) {
	request := httpapi.CreateJoinToken{
		TenantID: p.Tenant, PoolID: p.Pool, TTLSeconds: 3600, MaxUses: &uses, IdempotencyKey: strings.ToLower(rand.Text()),
	}
	if change != nil {
		change(&request)
	}
	if err := p.API.Call(ctx, "joinTokens.create", request, &made); err != nil {
		return made, fmt.Errorf("cannot create a token: %w", err)
	}
	return made, nil
}
