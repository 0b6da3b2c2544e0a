package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/internal/fault"
)

// maxContextFile is the size limit of a context file, in bytes.
const maxContextFile = 64 << 10

// serverContext is the context file: which server, and with which API key.
type serverContext struct {
	URL    string `toml:"url"`
	APIKey string `toml:"api_key"`
}

// loadContext reads a context file. It holds a secret, so a file that others can read is refused.
func loadContext(path string) (serverContext, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return serverContext{}, fault.New(fault.Config,
			`pass --context FILE; "better-compute serve --dir DIR" writes one as DIR/admin.toml`, "cannot read the context: %w", err)
	}
	if err != nil {
		return serverContext{}, fault.New(fault.Config, "", "cannot read the context: %w", err)
	}
	defer file.Close()

	info, err := file.Stat()
	switch {
	case err != nil:
		return serverContext{}, fault.New(fault.Config, "", "cannot read the context: %w", err)
	case !info.Mode().IsRegular():
		return serverContext{}, fault.New(fault.Config, "", "cannot read the context: %q is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return serverContext{}, fault.New(fault.Config, fmt.Sprintf("run \"chmod 600 %s\"", path),
			"cannot use the context %q: it holds an API key and others may read it (mode %04o)", path, info.Mode().Perm())
	case info.Size() > maxContextFile:
		return serverContext{}, fault.New(fault.Config, "", "cannot read the context %q: larger than %d bytes", path, maxContextFile)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxContextFile))
	if err != nil {
		return serverContext{}, fault.New(fault.Config, "", "cannot read the context: %w", err)
	}

	var c serverContext
	d := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return serverContext{}, fault.New(fault.Config, "", "cannot read the context %q: %w", path, tomlError(err))
	}
	for _, key := range []struct{ name, value string }{{"url", c.URL}, {"api_key", c.APIKey}} {
		if key.value == "" {
			return serverContext{}, fault.New(fault.Config, "", "cannot use the context %q: %s is missing", path, key.name)
		}
	}
	return c, nil
}

// tomlError adds the place to an error of the TOML decoder and never the text there, which may be the key.
func tomlError(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		row, column := unknown.Errors[0].Position()
		return fmt.Errorf("line %d, column %d: unknown key %q", row, column, dotted(unknown.Errors[0].Key()))
	}
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		row, column := syntax.Position()
		return fmt.Errorf("line %d, column %d: not valid TOML or not a string", row, column)
	}
	return errors.New("not valid TOML")
}

func dotted(key toml.Key) string {
	var b bytes.Buffer
	for i, part := range key {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(part)
	}
	return b.String()
}

// target is what the commands that talk to a server share: which server, tenant, pool and site.
type target struct {
	context, tenant, pool, site string

	url string // the server's, once connected
}

func (t *target) addContextTo(c *cobra.Command) {
	c.Flags().StringVar(&t.context, "context", "", "file that names the server and the API key (default $"+envContext+", else ~/.config/better-compute/context.toml)")
}

func (t *target) addTo(c *cobra.Command) {
	t.addContextTo(c)
	c.Flags().StringVar(&t.tenant, "tenant", "", "tenant id (default the API key's tenant)")
}

func (t *target) addPoolTo(c *cobra.Command) {
	t.addTo(c)
	c.Flags().StringVar(&t.pool, "pool", "", "pool id (default the tenant's pool, where it has only one)")
}

func (t *target) addSiteTo(c *cobra.Command) {
	t.addTo(c)
	c.Flags().StringVar(&t.site, "site", "", "site id (default the tenant's site, where it has only one)")
}

// dial returns a client.
func (t *target) dial(c *cobra.Command, env Env) (*client.Client, error) {
	if err := notEmpty(c, "context", "tenant", "pool", "site"); err != nil {
		return nil, err
	}
	for _, id := range []struct{ thing, prefix, value string }{
		{"tenant", "tn_", t.tenant}, {"pool", "pool_", t.pool}, {"site", "site_", t.site},
	} {
		if id.value != "" {
			if err := checkID(c, id.thing, id.prefix, id.value); err != nil {
				return nil, err
			}
		}
	}
	path, err := env.contextFile(t.context)
	if err != nil {
		return nil, err
	}
	file, err := loadContext(path)
	if err != nil {
		return nil, err
	}
	api, err := client.New(file.URL, file.APIKey)
	if err != nil {
		return nil, fmt.Errorf("cannot use the context %q: %w", path, err)
	}
	t.url = file.URL
	return api, nil
}

// connect returns a client, with tenant filled in.
func (t *target) connect(c *cobra.Command, env Env) (*client.Client, error) {
	api, err := t.dial(c, env)
	if err != nil {
		return nil, err
	}
	if t.tenant == "" {
		if t.tenant, err = soleTenant(c.Context(), api); err != nil {
			return nil, err
		}
	}
	return api, nil
}

// connectPool returns a client, with tenant and pool filled in.
func (t *target) connectPool(c *cobra.Command, env Env) (*client.Client, error) {
	api, err := t.connect(c, env)
	if err != nil {
		return nil, err
	}
	if t.pool == "" {
		if t.pool, err = solePool(c.Context(), api, t.tenant); err != nil {
			return nil, err
		}
	}
	return api, nil
}

// connectSite returns a client, with tenant and site filled in.
func (t *target) connectSite(c *cobra.Command, env Env) (*client.Client, error) {
	api, err := t.connect(c, env)
	if err != nil {
		return nil, err
	}
	if t.site == "" {
		if t.site, err = soleSite(c.Context(), api, t.tenant); err != nil {
			return nil, err
		}
	}
	return api, nil
}

func soleTenant(ctx context.Context, api *client.Client) (string, error) {
	var tenants httpapi.List[httpapi.Tenant]
	if err := api.Call(ctx, "tenants.list", httpapi.ListTenants{Own: true}, &tenants); err != nil {
		return "", fmt.Errorf("cannot find the tenant: %w", err)
	}
	if len(tenants.Items) != 1 {
		return "", fault.New(fault.Usage, "pass --tenant", "cannot choose a tenant: the API key acts for %d", len(tenants.Items))
	}
	return tenants.Items[0].ID, nil
}

func solePool(ctx context.Context, api *client.Client, tenant string) (string, error) {
	var pools httpapi.List[httpapi.Pool]
	if err := api.Call(ctx, "pools.list", httpapi.ListPools{TenantID: tenant}, &pools); err != nil {
		return "", fmt.Errorf("cannot find the pool: %w", err)
	}
	if len(pools.Items) != 1 {
		return "", fault.New(fault.Usage, "pass --pool", "cannot choose a pool: the tenant has %d", len(pools.Items))
	}
	return pools.Items[0].ID, nil
}

func soleSite(ctx context.Context, api *client.Client, tenant string) (string, error) {
	var sites httpapi.List[httpapi.Site]
	if err := api.Call(ctx, "sites.list", httpapi.ListSites{TenantID: tenant}, &sites); err != nil {
		return "", fmt.Errorf("cannot find the site: %w", err)
	}
	if len(sites.Items) != 1 {
		return "", fault.New(fault.Usage, "pass --site", "cannot choose a site: the tenant has %d", len(sites.Items))
	}
	return sites.Items[0].ID, nil
}
