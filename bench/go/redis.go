package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const redisKeys = 4 // streams per topic, as a topic of RocketMQ has queues

// streams is Redis Streams by go-redis: window sends under way are a pipeline of window XADDs, the
// way its users have many under way on one connection.
type streams struct{ address string }

func redisClient(port string) client { return streams{"127.0.0.1:" + port} }

func (s streams) readers() int { return redisKeys }

func (s streams) connect() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.address, PoolSize: 1, MaxRetries: -1, ReadTimeout: 30 * time.Second,
		DialerRetries: 1, // `first` is asked again at once
	})
}

func (s streams) prepare(string) error { return nil }

func (s streams) first() error {
	connection := s.connect()
	defer connection.Close()
	return add(connection, "Start", []byte("first")).Err()
}

func add(to redis.Cmdable, key string, body []byte) *redis.StringCmd {
	return to.XAdd(context.Background(), &redis.XAddArgs{Stream: key, Values: []any{"b", body}})
}

func key(topic string, index int) string { return fmt.Sprintf("%s:%d", topic, index%redisKeys) }

func (s streams) sender(topic string, index int) (func(int, int, []byte, *figures) error, error) {
	connection, name := s.connect(), key(topic, index)
	return func(share, window int, body []byte, f *figures) error {
		defer connection.Close()
		for share > 0 {
			n := min(share, window)
			share -= n
			begun := time.Now()
			if err := addAll(connection, name, n, body); err != nil {
				return err
			}
			f.good(n, time.Since(begun))
		}
		return nil
	}, nil
}

func addAll(connection *redis.Client, name string, n int, body []byte) error {
	if n == 1 {
		return checkID(add(connection, name, body))
	}
	pipeline := connection.Pipeline()
	for range n {
		add(pipeline, name, body)
	}
	answers, err := pipeline.Exec(context.Background())
	if err != nil || len(answers) != n {
		return fmt.Errorf("%d answers to %d commands: %w", len(answers), n, err)
	}
	for _, answer := range answers {
		if err := checkID(answer.(*redis.StringCmd)); err != nil {
			return err
		}
	}
	return nil
}

func checkID(answer *redis.StringCmd) error {
	if id, err := answer.Result(); err != nil {
		return err
	} else if !strings.Contains(id, "-") {
		return fmt.Errorf("%q is not the id of an entry", id)
	}
	return nil
}

func (s streams) reader(topic string, index, most int) (func(int, func(int) bool) (int, error), error) {
	connection, name := s.connect(), key(topic, index)
	return func(size int, enough func(int) bool) (int, error) {
		n, last := 0, "0-0"
		for !enough(0) {
			found, err := connection.XRead(context.Background(), &redis.XReadArgs{
				Streams: []string{name, last}, Count: int64(most), Block: -1,
			}).Result()
			if err == redis.Nil {
				break
			}
			if err != nil {
				return n, err
			}
			for _, entry := range found[0].Messages {
				if body, _ := entry.Values["b"].(string); len(body) != size {
					return n, fmt.Errorf("%s has %d bytes, not %d", entry.ID, len(body), size)
				}
				last = entry.ID
			}
			n += len(found[0].Messages)
			enough(len(found[0].Messages))
		}
		return n, nil
	}, nil
}
