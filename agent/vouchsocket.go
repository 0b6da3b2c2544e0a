package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
)

const vouchPath = "/v1/vouch"

const (
	// maxVouchRequest bounds what the status socket reads of a vouch, in bytes.
	maxVouchRequest = 4 << 10
	// askedFor is how long the asking command waits beyond [vouchDeadline] for the daemon's own word.
	askedFor = 5 * time.Second
)

// vouchDeadline is how long who asks for a vouch waits until the control plane has recorded it.
var vouchDeadline = 15 * time.Second

// Vouch is what a boot server knows of a machine that boots: the body of a POST to the status socket.
type Vouch struct {
	// BootMAC is the address of the NIC that boots, in any form that [hwclaims.BootMAC] takes.
	BootMAC string `json:"boot_mac"`
	// BootLeaseEpoch counts the NIC's boot leases: 1 to 2^63-1, and more at each boot.
	BootLeaseEpoch uint64 `json:"boot_lease_epoch"`
}

// Validate reports what is wrong with a vouch.
func (v Vouch) Validate() error {
	if _, ok := hwclaims.BootMAC(v.BootMAC); !ok {
		return fmt.Errorf("%q is not the hardware address of a NIC, aa:bb:cc:dd:ee:ff", v.BootMAC)
	}
	if v.BootLeaseEpoch < 1 || v.BootLeaseEpoch > math.MaxInt64 {
		return fmt.Errorf("the boot lease epoch is %d, not between 1 and %d", v.BootLeaseEpoch, math.MaxInt64)
	}
	return nil
}

// socketFailure is an answer of the status socket that says why something was not done.
type socketFailure struct {
	Code    fault.Code `json:"code"`
	Message string     `json:"message"`
	Hint    string     `json:"hint,omitempty"`
}

// takeVouch keeps a vouch and answers once it is recorded, or why it is not. Who asks may go away: the vouch is kept.
func (b *board) takeVouch(w http.ResponseWriter, r *http.Request) {
	v, err := readVouch(http.MaxBytesReader(w, r.Body, maxVouchRequest))
	// The server's time limits are for a request that is answered at once.
	control := http.NewResponseController(w)
	if errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{})) != nil {
		return
	}
	if err == nil {
		err = b.vouchFor(r.Context(), v)
	}
	if err != nil {
		answerFailure(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// answerFailure answers with what went wrong.
func answerFailure(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	switch code := fault.CodeOf(err); {
	case code == fault.AccessDenied, code == fault.NotRoot:
		status = http.StatusForbidden
	case !code.Temporary():
		status = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(socketFailure{fault.CodeOf(err), err.Error(), fault.HintOf(err)})
}

// readFailure returns the error that [answerFailure] answered with.
func readFailure(resp *http.Response) error {
	var failure socketFailure
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 1<<20)).Decode(&failure); err != nil {
		return fmt.Errorf("cannot read the daemon's answer: %w", err)
	}
	return fault.New(failure.Code, failure.Hint, "%s", failure.Message)
}

// vouchFor keeps a vouch and waits until it is settled. Without a session there is nothing to wait for.
func (b *board) vouchFor(ctx context.Context, request Vouch) error {
	mac, _ := hwclaims.BootMAC(request.BootMAC)
	v, err := b.vouches.add(mac, request.BootLeaseEpoch)
	if err != nil {
		return err
	}
	const kept = `the site agent keeps the vouch and sends it when it can; see "bcd status"`
	if s := b.read(); s.State != Connected {
		err := fault.New(fault.Unreachable, kept, "the vouch for %s is not recorded: the site agent is %s", mac, s.State)
		if s.Problem != "" {
			err = fault.New(fault.Unreachable, kept, "the vouch for %s is not recorded: the site agent is %s: %s", mac, s.State, s.Problem)
		}
		return err
	}
	late := time.NewTimer(vouchDeadline)
	defer late.Stop()
	select {
	case <-v.settled:
		return v.err
	case <-late.C:
		return fault.New(fault.Unreachable, kept, "the control plane has not recorded the vouch for %s within %s", mac, vouchDeadline)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func readVouch(body io.Reader) (Vouch, error) {
	var v Vouch
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	err := d.Decode(&v)
	if err == nil && d.More() {
		err = errors.New("more follows it")
	}
	if err != nil {
		return Vouch{}, fault.New(fault.InvalidArgument, "", "the vouch cannot be read: %w", err)
	}
	if err := v.Validate(); err != nil {
		return Vouch{}, fault.New(fault.InvalidArgument, "", "%w", err)
	}
	return v, nil
}

// RequestVouch has the site agent that listens on a status socket vouch for a machine, and returns when the control plane
// has recorded it. A site agent that does not run, has no session or gets no answer is a [fault.Unreachable] error; it keeps
// the vouch where it runs. A refusal is [fault.AccessDenied].
func RequestVouch(ctx context.Context, socket string, v Vouch) error {
	ctx, cancel := context.WithTimeout(ctx, vouchDeadline+askedFor)
	defer cancel()
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	resp, err := askDaemon(ctx, socket, "start it: bcd site", http.MethodPost, vouchPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return fault.New(fault.Config, `run "bcd site" at the boot server, and name its configuration with --config`, "the daemon at %q is no site agent", socket)
	}
	return readFailure(resp)
}
