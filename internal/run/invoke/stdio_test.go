package invoke

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

func TestTail(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limit  int
		writes []string
		want   string
	}{
		{"nothing", 4, nil, ""},
		{"less", 4, []string{"a", "bc"}, "abc"},
		{"full", 4, []string{"ab", "cd"}, "abcd"},
		{"one more", 4, []string{"ab", "cd", "e"}, "bcde"},
		{"one long write", 4, []string{"abcdefghij"}, "ghij"},
		{"three times as much", 4, []string{"abc", "defg", "hijkl"}, "ijkl"},
		{"two writes", 4, []string{"abc", "def"}, "cdef"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tail := tail{limit: tt.limit}
			for _, w := range tt.writes {
				tail.keep([]byte(w))
			}
			expect.Same(t, "tail", string(tail.bytes()), tt.want)
		})
	}
}

func TestTailAgainstTheWholeStream(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		tail := tail{limit: 1 + rnd.IntN(50)}
		var all []byte
		for range rnd.IntN(20) {
			p := make([]byte, rnd.IntN(80))
			for i := range p {
				p[i] = byte(rnd.IntN(256))
			}
			all = append(all, p...)
			tail.keep(p)
		}
		want := all[max(0, len(all)-tail.limit):]
		got := tail.bytes()
		expect.Must(t, bytes.Equal(got, want), "limit %d: got %x, want %x", tail.limit, got, want)
	}
}
