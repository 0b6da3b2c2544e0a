package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/peercred"
)

// hintStart is what to do about a helper that does not run.
const hintStart = "start it: systemctl start bcd-helper"

// Client asks the helper. It holds nothing open: each call connects anew, so a helper may restart in between.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns the client of the helper that listens on a socket. It opens nothing.
func NewClient(socket string) *Client {
	return &Client{socket: socket, http: &http.Client{
		Timeout: callWithin + requestWithin,
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 4 << 10,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, socket) },
		},
	}}
}

// errImpostor is another user's program in the helper's place.
var errImpostor = errors.New("it is neither root's nor this user's")

func dial(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	uid, err := peercred.UID(conn)
	if err == nil && uid != 0 && int64(uid) != int64(os.Geteuid()) {
		err = errImpostor
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// Firmware returns the firmware's hardware identifiers, which root alone may read.
func (c *Client) Firmware(ctx context.Context) (hwclaims.Report, error) {
	var a firmwareAnswer
	if err := c.call(ctx, pathFirmware, nothing{}, &a); err != nil {
		return hwclaims.Report{}, fmt.Errorf("cannot read the hardware's identifiers: %w", recoded(err, fault.Unreachable))
	}
	if err := a.Report.Claims.Validate(); err != nil {
		return hwclaims.Report{}, fmt.Errorf("cannot use the helper's hardware claims: %w", err)
	}
	return a.Report, nil
}

// Config returns the configuration for a node that can read none, as a config.toml. Where there is no helper the error is
// [fs.ErrNotExist], and [fs.ErrPermission] where it is for another user.
func (c *Client) Config(ctx context.Context) ([]byte, error) {
	var a configAnswer
	if err := c.call(ctx, pathConfig, nothing{}, &a); err != nil {
		return nil, fmt.Errorf("cannot ask the helper for the configuration: %w", recoded(err, fault.Unreachable))
	}
	return []byte(a.Document), nil
}

// call makes one call. A helper that cannot be reached is [fault.TPMUnavailable]: what is asked of it is mostly the TPM's.
func (c *Client) call(ctx context.Context, path string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("cannot encode the call: %w", err)
	}
	if len(body) > maxMessage {
		return fault.New(fault.TooLarge, "", "the call of the helper has %d bytes, more than %d", len(body), maxMessage)
	}
	pause := firstPause
	for try := 1; ; try++ {
		err := c.try(ctx, path, body, answer)
		if try == maxTries || !errors.Is(err, errDropped) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		pause *= 2
	}
}

// A call whose connection was closed without an answer, because the helper is being restarted or is crowded, is made again. No
// call is harmed by being made twice.
const (
	maxTries   = 4
	firstPause = 50 * time.Millisecond
)

// errDropped is a connection that the helper closed without an answer.
var errDropped = errors.New("it closed the connection")

// try makes a call once.
func (c *Client) try(ctx context.Context, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bcd-helper"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = errors.Unwrap(err) // without the method and a URL that nobody knows
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			err = errDropped
		}
		return c.unreachable(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return readFailure(resp.Body)
	}
	if err := decode(resp.Body, answer); err != nil {
		return c.unreachable(fmt.Errorf("its answer cannot be read: %w", err))
	}
	return nil
}

// unreachableError is a helper that does not answer.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

func (c *Client) unreachable(err error) error {
	hint := hintStart
	cause := err
	var errno syscall.Errno
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, errImpostor):
		hint = "run bcd as the user that [helper] names; the helper's socket belongs to root and that user's group"
	case errors.Is(err, errDropped):
		hint = "look at the helper's log: journalctl -u bcd-helper"
	}
	if errors.As(err, &errno) {
		cause = errno
	}
	return &unreachableError{fault.New(fault.TPMUnavailable, hint, "cannot reach the helper at %q: %w", c.socket, cause)}
}

// recoded gives the error of a helper that does not answer another code, where the TPM has nothing to do with it.
func recoded(err error, code fault.Code) error {
	if away, ok := errors.AsType[*unreachableError](err); ok {
		return fault.New(code, fault.HintOf(away), "%w", away.err)
	}
	return err
}
