// Package client calls the control plane's HTTP API.
//
// It sends an API key only over TLS or to the machine itself, never follows a redirect with it, and turns the API's
// errors back into faults with their code and hint. It retries nothing: which call may be repeated is for its caller to
// know.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/internal/fault"
)

// maxAnswer is the size limit of an answer, in bytes. A full page of any list is far smaller.
const maxAnswer = 16 << 20

// timeout is the limit of one call, from dialling to the end of the answer.
const timeout = 30 * time.Second

// Client calls one server with one API key. It is safe for concurrent use.
type Client struct {
	base   string // URL with the base path, without a trailing slash
	apiKey string
	http   *http.Client
}

// New returns a client of the server at base, which includes the base path: https://compute.example.com/api/compute.
func New(base, apiKey string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fault.New(fault.Config, "", "%q is not a URL: %w", base, err)
	}
	switch {
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fault.New(fault.Config, "write it as https://HOST/api/compute", "%q is not the URL of a server", base)
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		return nil, fault.New(fault.Config, "use an https URL", "cannot send the API key to %q: not encrypted", base)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = timeout
	return &Client{
		base:   strings.TrimRight(base, "/"),
		apiKey: apiKey,
		http: &http.Client{
			Transport: transport,
			Timeout:   timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	}, nil
}

// loopback reports whether host is this machine. A name other than localhost is not: it resolves to anything.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// Call calls a method, "joinTokens.create" for instance, with the request in and reads the answer into out. A failure
// is a [fault.Error]: the API's own, or [fault.Unreachable].
func (c *Client) Call(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("cannot encode the request of %s: %w", method, err)
	}
	path := c.base + "/" + strings.ReplaceAll(method, ".", "/")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cannot call %s: %w", method, err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+c.apiKey)

	response, err := c.http.Do(request)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.unreachable(ctx, err)
	case len(answer) > maxAnswer:
		return fmt.Errorf("the answer of %s is larger than %d bytes", path, maxAnswer)
	case response.StatusCode != http.StatusOK:
		return c.problem(path, response.StatusCode, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("cannot read the answer of %s: %w", path, err)
	}
	return nil
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	var op *url.Error
	if errors.As(err, &op) {
		err = op.Err // the URL is said once
	}
	hint := ""
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		hint = `check that the server runs ("better-compute serve") and that the context names its URL`
	}
	return fault.New(fault.Unreachable, hint, "cannot reach %s: %w", c.base, err)
}

// problem reads a failed answer. What does not come from the API, a proxy's page for instance, is told by its status.
func (c *Client) problem(path string, status int, answer []byte) error {
	var p httpapi.Problem
	if json.Unmarshal(answer, &p) != nil || p.Code == "" || p.Message == "" {
		code := fault.Failed
		if status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout {
			code = fault.Unreachable
		}
		return fault.New(code, "check that the context's URL ends in the server's base path, /api/compute by default",
			"%s answered HTTP status %d, not as the API does", path, status)
	}
	return fault.New(p.Code, p.Hint, "%s", p.Message)
}
