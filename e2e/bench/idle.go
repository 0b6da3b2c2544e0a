package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	idleDaemons = 5
	// settle is how long a daemon is left alone after its session opened: start-up is over then.
	settle = 15 * time.Second
	// connectWithin bounds the start of a daemon, up to its open session.
	connectWithin = 30 * time.Second
)

// measureIdle watches daemons, each a machine of its own, that hold their sessions and have nothing else to do. They run
// at the same time: one window gives a sample of each.
func measureIdle(ctx context.Context, b *bench) (err error) {
	var daemons []*exec.Cmd
	defer func() {
		for _, d := range daemons {
			err = errors.Join(err, stop(d))
		}
	}()
	token, err := b.server.NewToken(ctx, idleDaemons, nil)
	if err != nil {
		return err
	}
	for i := range idleDaemons {
		m, err := b.newMachine(fmt.Sprintf("idle-%d", i))
		if err != nil {
			return err
		}
		if _, err := b.joinWith(ctx, m, token.Token); err != nil {
			return err
		}
		d, err := b.startNode(ctx, m)
		if d != nil {
			daemons = append(daemons, d)
		}
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "\n%d daemons settle for %s and are watched for %s …\n", idleDaemons, settle, b.window)
	if err := pause(ctx, settle); err != nil {
		return err
	}
	before := make([]usage, len(daemons))
	for i, d := range daemons {
		if before[i], err = usageOf(d.Process.Pid); err != nil {
			return err
		}
	}
	begun := time.Now()
	if err := pause(ctx, b.window); err != nil {
		return err
	}
	var rss, anonymous, cpu, wakeUps []float64
	for i, d := range daemons {
		u, err := usageOf(d.Process.Pid)
		if err != nil {
			return err
		}
		watched := time.Since(begun)
		rss = append(rss, u.rss)
		anonymous = append(anonymous, u.anonymous)
		cpu = append(cpu, 100*(u.cpu-before[i].cpu).Seconds()/watched.Seconds())
		wakeUps = append(wakeUps, float64(u.switches-before[i].switches)/watched.Seconds())
	}
	t := newTable(b.out, fmt.Sprintf("An idle bcd node, connected (%d of them at once, over %s)", idleDaemons, b.window))
	t.add(figure{name: "RSS", unit: "MiB", samples: rss, goal: 20, aim: 18, whole: true, peer: peerRSS})
	t.add(figure{name: "of it anonymous", unit: "MiB", samples: anonymous, peer: peerAnonymous})
	t.add(figure{name: "CPU", unit: "% of a core", samples: cpu, goal: 0.1, whole: true, peer: peerCPU})
	t.add(figure{name: "context switches", unit: "a second", samples: wakeUps, peer: peerWakeUps})
	return t.flush()
}

// startNode starts a machine's daemon and waits until its session is open. The daemon is returned with an error too, where
// it was started.
func (b *bench) startNode(ctx context.Context, m machine) (*exec.Cmd, error) {
	d := b.command(ctx, "bcd", "node", "--config", m.config)
	log, err := d.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := d.Start(); err != nil {
		return nil, err
	}
	opened := make(chan struct{})
	ended := make(chan string, 1)
	go func() {
		last := "it said nothing"
		var once sync.Once
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if last = lines.Text(); strings.Contains(last, `msg="open session"`) {
				once.Do(func() { close(opened) })
			}
		}
		ended <- last
	}()
	select {
	case <-opened:
		return d, nil
	case last := <-ended:
		return d, fmt.Errorf("bcd node ended: %s", last)
	case <-time.After(connectWithin):
		return d, fmt.Errorf("bcd node did not connect within %s", connectWithin)
	case <-ctx.Done():
		return d, context.Cause(ctx)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
