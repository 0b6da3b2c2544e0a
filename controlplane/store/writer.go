package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// maxBatch is how many writes share one commit at most: it bounds how long the first waits for the last.
const maxBatch = 64

// writer runs writes one after the other on one connection. Writes that wait while a commit is on its way to the disk
// run together and share the next commit: each in a savepoint of its own, so that one that fails undoes only itself.
//
// There is no goroutine of its own: the write that finds nobody at work leads, for all that wait.
type writer struct {
	store *sqliteStore
	lead  chan struct{} // holds a value while nobody leads; closed with the store
	conn  *conn         // only the leader, as ids
	ids   idClock

	mu      sync.Mutex
	waiting []*write
}

// write is one call of Write.
type write struct {
	ctx  context.Context //nolint:containedctx // a write lives no longer than its call
	fn   func(*Tx) error
	done chan struct{}
	// Set before done is closed.
	err      error
	panicked any
	topics   []string
}

func newWriter(c *conn, s *sqliteStore) *writer {
	w := &writer{store: s, lead: make(chan struct{}, 1), conn: c}
	w.lead <- struct{}{}
	return w
}

func (w *writer) close() error {
	<-w.lead
	close(w.lead)
	return w.conn.close()
}

func (w *writer) do(ctx context.Context, fn func(*Tx) error) error {
	me := &write{ctx: ctx, fn: fn, done: make(chan struct{})}
	w.mu.Lock()
	w.waiting = append(w.waiting, me)
	w.mu.Unlock()
	given := ctx.Done()
	for {
		select {
		case <-me.done:
			if me.panicked != nil {
				panic(me.panicked)
			}
			return me.err
		case _, open := <-w.lead:
			if !open {
				return errClosed
			}
			w.leadOnce()
		case <-given:
			if w.withdraw(me) {
				return ctx.Err()
			}
			given = nil // it has begun: its outcome counts
		}
	}
}

// withdraw takes back a write that has not begun.
func (w *writer) withdraw(me *write) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.waiting, me)
	if i < 0 {
		return false
	}
	w.waiting = slices.Delete(w.waiting, i, i+1)
	return true
}

// leadOnce gives the lead back even when a write ends its goroutine (runtime.Goexit, as a failing test does).
func (w *writer) leadOnce() {
	defer func() { w.lead <- struct{}{} }()
	w.batch(w.take())
}

func (w *writer) take() []*write {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.waiting), maxBatch)
	batch := slices.Clone(w.waiting[:n])
	w.waiting = slices.Delete(w.waiting, 0, n)
	return batch
}

// batch runs the writes in one transaction. When the transaction as a whole fails, each that could have succeeded gets
// a transaction of its own: one write that fills the disk must not fail the others.
func (w *writer) batch(writes []*write) {
	if len(writes) == 0 {
		return
	}
	err := w.transaction(writes)
	if err != nil && len(writes) > 1 {
		for _, one := range writes {
			if one.err != nil || one.panicked != nil {
				continue
			}
			if err := w.transaction([]*write{one}); err != nil {
				one.err = err
			}
		}
		err = nil
	}
	for _, one := range writes {
		if err != nil && one.err == nil {
			one.err = err
		}
		if one.err == nil && one.panicked == nil {
			w.store.notify(one.topics)
		}
		close(one.done)
	}
}

// transaction runs the writes and commits them. Its error is the transaction's; a write's own is in the write.
func (w *writer) transaction(writes []*write) (err error) {
	// An interrupted statement would undo the whole transaction, and with it the writes of others. So no context ends
	// it: a write whose context has ended does not start.
	ctx := context.Background() //nolint:forbidigo // see above
	if err := w.store.inPlace(); err != nil {
		return err
	}
	if err := w.conn.run(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("cannot begin: %w", classify(err))
	}
	committed := false
	defer func() {
		if !committed {
			// SQLite may have rolled back already (a full disk): then this fails, and nothing is left to undo.
			_ = w.conn.run(ctx, "ROLLBACK")
		}
	}()
	if len(writes) == 1 { // the transaction is its savepoint
		if one := writes[0]; !w.call(ctx, one) {
			return nil
		}
	} else {
		for _, one := range writes {
			if err := w.savepoint(ctx, one); err != nil {
				return err
			}
		}
	}
	if err := w.conn.run(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("cannot commit: %w", classify(err))
	}
	committed = true
	return nil
}

// savepoint runs a write so that it can be undone alone.
func (w *writer) savepoint(ctx context.Context, one *write) error {
	if err := w.conn.run(ctx, "SAVEPOINT write_one"); err != nil {
		return fmt.Errorf("cannot begin: %w", classify(err))
	}
	if !w.call(ctx, one) {
		if err := w.conn.run(ctx, "ROLLBACK TO write_one"); err != nil {
			return errors.Join(one.err, fmt.Errorf("cannot undo: %w", err))
		}
	}
	if err := w.conn.run(ctx, "RELEASE write_one"); err != nil {
		return fmt.Errorf("cannot end a write: %w", classify(err))
	}
	return nil
}

// call runs a write's function and reports whether what it did is to be kept. A panic is kept for the goroutine that it
// belongs to.
func (w *writer) call(ctx context.Context, one *write) (keep bool) {
	if one.err = one.ctx.Err(); one.err != nil {
		return false
	}
	tx := &Tx{
		ctx: ctx, conn: w.conn, now: w.store.now(), writable: true, afterStep: w.store.opts.AfterStep, ids: &w.ids,
	}
	defer func() {
		one.topics = tx.topics
		if one.panicked = recover(); one.panicked != nil {
			keep = false
		}
	}()
	one.err = one.fn(tx)
	return one.err == nil
}
