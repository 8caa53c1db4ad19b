package toolgate

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"
)

// untilAnswered sends a request until it is answered. It fails if the service was never reached, or refuses.
func untilAnswered[T any](ctx context.Context, c *Client, send func() (T, error)) (T, error) {
	for attempt := 0; ; attempt++ {
		answer, err := send()
		if err == nil {
			c.isReached.Store(true)
			return answer, nil
		}
		if err := c.pauseAfter(ctx, err, attempt); err != nil {
			return answer, err
		}
	}
}

// firstTries is how often a service that was never reached is tried.
const firstTries = 5

// pauseAfter waits before the next attempt after a lost connection; any other error is returned. A nil error is a stream that the
// service ended. A service that was never reached is an error: at once if nothing listens, otherwise after some tries.
func (c *Client) pauseAfter(ctx context.Context, err error, attempt int) error {
	if connect.IsWireError(err) {
		c.isReached.Store(true)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !isCut(err) {
		return err
	}
	if err != nil && !c.isReached.Load() && (attempt == 0 && isUnreachable(err) || attempt+1 >= firstTries) {
		return unreached(err)
	}
	return sleep(ctx, backoff(attempt))
}

// resumed reads a stream, which is opened again after each lost connection, until the reader returns false.
func resumed[T any](
	ctx context.Context, c *Client, open func() (*connect.ServerStreamForClient[T], error), read func(message *T) bool,
) error {
	for attempt := 0; ; attempt++ {
		stream, err := open()
		for err == nil && stream.Receive() {
			attempt = 0
			c.isReached.Store(true)
			if !read(stream.Msg()) {
				_ = stream.Close()
				return nil
			}
		}
		if err == nil {
			err = stream.Err()
		}
		if err := c.pauseAfter(ctx, err, attempt); err != nil {
			return err
		}
	}
}

// isCut reports a lost connection, which no server reported, or a service that asks to retry; any other refusal is final.
func isCut(err error) bool {
	return !connect.IsWireError(err) || connect.CodeOf(err) == connect.CodeUnavailable
}

// isUnreachable reports a connection that cannot be made, so that nothing was sent.
func isUnreachable(err error) bool {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) || errors.As(err, &certificate)
}

// unreached adds the next step to the error of a connection that was never made.
func unreached(err error) error {
	return fmt.Errorf("no service answers: %w; next: start one with `toolgate serve`, or set TOOLGATE_URL to the address of one", err)
}

const maxBackoff = 5 * time.Second

// backoff is the pause before a retry, counted from 0: it doubles up to a maximum, and is random so that programs do not return at
// once.
func backoff(attempt int) time.Duration {
	pause := min(250*time.Millisecond<<min(attempt, 10), maxBackoff)
	return time.Duration(float64(pause) * (0.5 + rand.Float64()/2))
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// structOf encodes a value that is a JSON object; nil stays nil.
func structOf(value any) (*structpb.Struct, error) {
	if value == nil {
		return nil, nil
	}
	text, err := jsonOf(value)
	if err != nil {
		return nil, err
	}
	made := new(structpb.Struct)
	return made, made.UnmarshalJSON(text)
}

// jsonOf encodes a value. Numbers of the contract are doubles: an integer that none of them holds is refused, not rounded.
func jsonOf(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var decoded any
	if err := decoder.Decode(&decoded); err != nil {
		return nil, err
	}
	return text, checkNumbers("", decoded)
}

// checkNumbers refuses rounded integers within a value, with the path of the field.
func checkNumbers(path string, value any) error {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			if err := checkNumbers(strings.TrimPrefix(path+"."+name, "."), field); err != nil {
				return err
			}
		}
	case []any:
		for index, item := range value {
			if err := checkNumbers(fmt.Sprintf("%s[%d]", path, index), item); err != nil {
				return err
			}
		}
	case json.Number:
		number, err := value.Float64()
		isInteger := !strings.ContainsAny(value.String(), ".eE")
		if err != nil || isInteger && strconv.FormatFloat(number, 'f', -1, 64) != value.String() {
			return fmt.Errorf("%s is %s, which would be rounded, as integers beyond 2^53 are: pass it as text", firstOf(path, "the value"), value)
		}
	}
	return nil
}
