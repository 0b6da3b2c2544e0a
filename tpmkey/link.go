package tpmkey

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/go-tpm/tpm2"
)

// Retries of an answer that means "not now". A chip that tests itself after power-on answers so for seconds.
const (
	firstPause  = 20 * time.Millisecond
	longPause   = 2 * time.Second
	pauseBudget = 30 * time.Second
)

// closeGrace is how long a read may take to end after its socket was closed.
const closeGrace = time.Second

// headerSize is the size of a command's and of a response's header (TPM 2.0 Part 1, section 18).
const headerSize = 10

// maxResponse bounds a response, in bytes. It is the buffer of the kernel's TPM device.
const maxResponse = 4096

// link is one connection for the length of one operation. It is the transport of go-tpm, whose Send has no context:
// hence the field.
type link struct {
	ctx       context.Context
	dev       *device
	conn      io.ReadWriteCloser
	broken    error            // of the connection: nothing more can be sent
	live      []tpm2.TPMHandle // what this operation has loaded and not flushed
	reclaimed bool
}

// errTimeout is a TPM that did not answer within the deadline.
var errTimeout = errors.New("the TPM did not answer in time")

// Send passes one command to the TPM and returns its response. It waits out answers that mean "not now".
func (l *link) Send(command []byte) ([]byte, error) {
	ctx := l.ctx
	if isFlush(command) {
		// What was loaded is flushed even when the caller no longer waits for the result.
		ctx = context.WithoutCancel(ctx)
	}
	pause, left := firstPause, pauseBudget
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		response, err := l.exchange(command)
		if err != nil {
			return nil, err
		}
		rc := responseCode(response)
		switch {
		case isNotNow(rc) && left > 0:
			if err := l.dev.pause(ctx, pause); err != nil {
				return nil, err
			}
			left -= pause
			pause = min(2*pause, longPause)
		case isFull(rc) && l.dev.socket && !l.reclaimed:
			l.reclaimed = true
			if err := l.reclaim(); err != nil {
				return nil, err
			}
		default:
			return response, nil
		}
	}
}

// exchange does one round trip within the deadline. A command is never cut short by a context: what it loads would then
// have no owner.
func (l *link) exchange(command []byte) ([]byte, error) {
	if l.broken != nil {
		return nil, l.broken
	}
	var response []byte
	var err error
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		response, err = roundTrip(l.conn, command)
	}()
	timer := time.NewTimer(l.dev.timeout)
	defer timer.Stop()
	select {
	case <-returned:
		l.broken = err
		return response, err
	case <-timer.C:
		// Closing ends a socket's read at once. A device's stays in the kernel until the chip answers.
		l.broken = errTimeout
		_ = l.conn.Close()
		timer.Reset(closeGrace)
		select {
		case <-returned:
		case <-timer.C:
			l.dev.stuck = &stuckCommand{returned}
		}
		return nil, errTimeout
	}
}

func roundTrip(conn io.ReadWriter, command []byte) ([]byte, error) {
	if _, err := conn.Write(command); err != nil {
		return nil, err
	}
	// A device gives a whole response to one read; a socket may give parts.
	buf := make([]byte, maxResponse)
	n, err := io.ReadAtLeast(conn, buf, headerSize)
	if err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(buf[2:]))
	if size < headerSize || size > maxResponse || n > size {
		return nil, fmt.Errorf("the TPM sent a response of %d bytes that says %d", n, size)
	}
	if n < size {
		if _, err := io.ReadFull(conn, buf[n:size]); err != nil {
			return nil, err
		}
	}
	// The resource manager marks its own answers in the upper half; the codes are those of the TPM.
	buf[6], buf[7] = 0, 0
	return buf[:size], nil
}

// responseCode returns the code of a response that roundTrip took.
func responseCode(response []byte) tpm2.TPMRC {
	return tpm2.TPMRC(binary.BigEndian.Uint32(response[6:]))
}

func isFlush(command []byte) bool {
	return len(command) >= headerSize && tpm2.TPMCC(binary.BigEndian.Uint32(command[6:])) == tpm2.TPMCCFlushContext
}

// flush frees an object or a session of this operation. It tries twice: one leaked slot in three is too many.
func (l *link) flush(handle tpm2.TPMHandle) error {
	flush := tpm2.FlushContext{FlushHandle: handle}
	_, err := flush.Execute(l)
	if err != nil && l.broken == nil {
		_, err = flush.Execute(l)
	}
	l.live = slices.DeleteFunc(l.live, func(h tpm2.TPMHandle) bool { return h == handle })
	if err != nil {
		return fmt.Errorf("cannot flush 0x%08x: %w", uint32(handle), err)
	}
	return nil
}

// flushInto flushes handle at the end of a function, and reports a failure unless an earlier error says more.
func (l *link) flushInto(err *error, handle tpm2.TPMHandle) {
	if flushErr := l.flush(handle); *err == nil {
		*err = flushErr
	}
}

// reclaim flushes what clients that died have left in a software TPM. It serves one client at a time and has no
// resource manager, so whatever is loaded and not ours has no owner. A chip is never treated so.
func (l *link) reclaim() error {
	for _, first := range []tpm2.TPMHandle{firstTransient, firstLoadedSession} {
		listed, err := tpm2.GetCapability{
			Capability: tpm2.TPMCapHandles, Property: uint32(first), PropertyCount: maxHandles,
		}.Execute(l)
		if err != nil {
			return fmt.Errorf("cannot list what is loaded: %w", err)
		}
		handles, err := listed.CapabilityData.Data.Handles()
		if err != nil {
			return fmt.Errorf("cannot list what is loaded: %w", err)
		}
		for _, h := range handles.Handle {
			if slices.Contains(l.live, h) {
				continue
			}
			if err := l.flush(h); err != nil {
				return err
			}
		}
	}
	return nil
}

// The first handles of the ranges that TPM2_GetCapability lists (TPM 2.0 Part 2, section 7.2), and more than there are.
const (
	firstTransient     tpm2.TPMHandle = 0x80000000
	firstLoadedSession tpm2.TPMHandle = 0x02000000
	maxHandles                        = 64
)
