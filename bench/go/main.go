// Load clients for the peers whose users have a Go client: driver nats|redis PORT, then commands
// by line, each answered with one JSON object.
//
//	send topic=T n=100000 conns=4 window=32 size=1024   every acknowledgement is checked
//	pull topic=T n=100000 conns=4 max=32                reads again and again from the start
//	count topic=T                                       reads everything once
//	first                                               one message, if it is taken at once
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type client interface {
	first() error
	// prepare makes the topic.
	prepare(topic string) error
	// sender connects; the function it gives sends share messages, at most window under way.
	sender(topic string, index int) (func(share, window int, body []byte, f *figures) error, error)
	// reader connects; the function it gives reads from the start to the end or until enough() and
	// returns how many messages it saw.
	reader(topic string, index, most int) (func(size int, enough func(int) bool) (int, error), error)
	// readers is how many of them read everything once.
	readers() int
}

type options map[string]string

func (o options) number(name string, fallback int) int {
	if value, err := strconv.Atoi(o[name]); err == nil {
		return value
	}
	return fallback
}

// figures of one row; latencies are added by the thread that waited.
type figures struct {
	lock      sync.Mutex
	latencies []time.Duration
	n, bad    int
	err       string
	seconds   float64
}

func (f *figures) good(messages int, latency time.Duration) {
	f.lock.Lock()
	f.n += messages
	f.latencies = append(f.latencies, latency)
	f.lock.Unlock()
}

func (f *figures) failed(err error) {
	f.lock.Lock()
	if f.bad++; f.bad == 1 {
		f.err = err.Error()
	}
	f.lock.Unlock()
}

func (f *figures) percentile(share float64) float64 {
	if len(f.latencies) == 0 {
		return 0
	}
	return float64(f.latencies[int(float64(len(f.latencies)-1)*share)].Nanoseconds()) / 1e3
}

func (f *figures) json() string {
	sort.Slice(f.latencies, func(a, b int) bool { return f.latencies[a] < f.latencies[b] })
	text, _ := json.Marshal(map[string]any{
		"n": f.n, "secs": f.seconds, "per_s": float64(f.n) / max(f.seconds, 1e-9),
		"p50_us": f.percentile(.5), "p99_us": f.percentile(.99), "bad": f.bad, "error": f.err,
	})
	return string(text)
}

func (f *figures) timed(work []func() error) {
	var all sync.WaitGroup
	begun := time.Now()
	for _, one := range work {
		all.Go(func() {
			if err := one(); err != nil {
				f.failed(err)
			}
		})
	}
	all.Wait()
	f.seconds = time.Since(begun).Seconds()
}

func body(size int) []byte {
	bytes := make([]byte, size)
	for i := range bytes {
		bytes[i] = byte('a' + (i*7+3)%26)
	}
	return bytes
}

func send(c client, o options, f *figures) error {
	total, conns, window := o.number("n", 100000), o.number("conns", 4), o.number("window", 32)
	content := body(o.number("size", 1024))
	if err := c.prepare(o["topic"]); err != nil {
		return err
	}
	var work []func() error
	for i := range conns {
		sender, err := c.sender(o["topic"], i)
		if err != nil {
			return err
		}
		share := total / conns
		if i < total%conns {
			share++
		}
		work = append(work, func() error { return sender(share, window, content, f) })
	}
	f.timed(work)
	return nil
}

func pull(c client, o options, f *figures) error {
	total, most, size := o.number("n", 100000), o.number("max", 32), o.number("size", 1024)
	var seen atomic.Int64
	enough := func(more int) bool { return seen.Add(int64(more)) >= int64(total) }
	var work []func() error
	for i := range o.number("conns", 4) {
		reader, err := c.reader(o["topic"], i, most)
		if err != nil {
			return err
		}
		work = append(work, func() error {
			for !enough(0) {
				if n, err := reader(size, enough); err != nil {
					return err
				} else if n == 0 && !enough(0) {
					return fmt.Errorf("%s: reader %d found nothing", o["topic"], i)
				}
			}
			return nil
		})
	}
	f.timed(work)
	f.n = int(seen.Load())
	return nil
}

func count(c client, o options, f *figures) error {
	for i := range c.readers() {
		reader, err := c.reader(o["topic"], i, 1024)
		if err != nil {
			return err
		}
		n, err := reader(o.number("size", 1024), func(int) bool { return false })
		if err != nil {
			return err
		}
		f.n += n
	}
	return nil
}

func first(c client, _ options, f *figures) error {
	if err := c.first(); err != nil {
		fmt.Fprintln(os.Stderr, "not yet:", err)
	} else {
		f.n = 1
	}
	return nil
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: driver nats|redis PORT")
		os.Exit(2)
	}
	c := map[string]func(port string) client{"nats": natsClient, "redis": redisClient}[os.Args[1]](os.Args[2])
	modes := map[string]func(client, options, *figures) error{
		"send": send, "pull": pull, "count": count, "first": first,
	}
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		words := strings.Fields(input.Text())
		o := options{}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			o[name] = value
		}
		f := &figures{}
		if err := modes[words[0]](c, o, f); err != nil {
			f.failed(err)
		}
		fmt.Println(f.json())
	}
}
