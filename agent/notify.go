package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/better-compute/bcd/internal/oneline"
)

// Notifier tells the service manager how the daemon is. The zero value tells nobody.
type Notifier struct {
	// Send sends a notification (sd_notify(3)). Nil sends nothing.
	Send func(state string)
	// Watchdog is the interval within which the manager wants to hear of the daemon; 0 where it does not ask.
	Watchdog time.Duration
}

// SystemdNotifier returns the notifier of the service manager that started this process, as its environment names it.
func SystemdNotifier() Notifier {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		interval = 0
	}
	return Notifier{
		Send:     func(state string) { _, _ = daemon.SdNotify(false, state) },
		Watchdog: interval,
	}
}

func (n Notifier) ready()               { n.send(daemon.SdNotifyReady) }
func (n Notifier) stopping()            { n.send(daemon.SdNotifyStopping) }
func (n Notifier) status(status string) { n.send("STATUS=" + oneline.Text(status)) }

func (n Notifier) send(state string) {
	if n.Send != nil {
		n.Send(state)
	}
}

// pulse is one loop's sign of life.
type pulse struct{ last atomic.Int64 }

func (p *pulse) beat(now time.Time) { p.last.Store(now.UnixNano()) }

// stuckAfter is how long a loop may be silent. It covers a dial, a slow TPM and a call, each with its own deadline.
const stuckAfter = 5 * time.Minute

// feed keeps the service manager's watchdog fed while every loop shows life. It returns when ctx ends.
func (n Notifier) feed(ctx context.Context, loops ...*pulse) {
	if n.Watchdog <= 0 {
		return
	}
	tick := time.NewTicker(n.Watchdog / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			alive := true
			for _, p := range loops {
				last := p.last.Load()
				alive = alive && (last == 0 || now.Sub(time.Unix(0, last)) < stuckAfter)
			}
			if alive {
				n.send(daemon.SdNotifyWatchdog)
			}
		}
	}
}

// whileFed runs f, which waits and cannot be stuck, and keeps the service manager's watchdog fed meanwhile.
func (n Notifier) whileFed(ctx context.Context, f func()) {
	ctx, cancel := context.WithCancel(ctx)
	var feeding sync.WaitGroup
	feeding.Go(func() { n.feed(ctx) })
	f()
	cancel()
	feeding.Wait()
}
