package toolgate

import (
	"sync"

	toolv1 "toolgate/gen/opencode/tool/v1"
)

// outbox holds the messages that wait to be sent on one connection. A nil outbox drops them: the next connection sends again what is
// kept.
type outbox struct {
	mu       sync.Mutex
	waiting  []*toolv1.WorkRequest
	isClosed bool
	wake     chan struct{}
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) push(message *toolv1.WorkRequest) {
	if o == nil {
		return
	}
	o.mu.Lock()
	o.waiting = append(o.waiting, message)
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) close() {
	o.mu.Lock()
	o.isClosed = true
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// drain sends messages until the outbox is closed or a message cannot be sent.
func (o *outbox) drain(send func(*toolv1.WorkRequest) error) {
	for range o.wake {
		o.mu.Lock()
		messages, isClosed := o.waiting, o.isClosed
		o.waiting = nil
		o.mu.Unlock()
		if isClosed {
			return
		}
		for _, message := range messages {
			if send(message) != nil {
				return
			}
		}
	}
}
