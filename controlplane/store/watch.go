package store

import "sync"

// watchers are the channels that wait for a topic.
type watchers struct {
	mu     sync.Mutex
	topics map[string]map[chan struct{}]struct{}
}

// Watch implements [Store].
func (w *watchers) Watch(topic string) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.topics == nil {
		w.topics = make(map[string]map[chan struct{}]struct{})
	}
	if w.topics[topic] == nil {
		w.topics[topic] = make(map[chan struct{}]struct{})
	}
	w.topics[topic][c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.topics[topic], c)
		if len(w.topics[topic]) == 0 {
			delete(w.topics, topic)
		}
	}
}

func (w *watchers) notify(topics []string) {
	if len(topics) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, topic := range topics {
		for c := range w.topics[topic] {
			select {
			case c <- struct{}{}:
			default: // it has a value that it did not take yet
			}
		}
	}
}
