package invoke

import "testing"

func TestParseStat(t *testing.T) {
	const rest = " 0 -1 4194560 190 0 0 0 0 0 0 0 20 0 "
	type want struct {
		pgid  int
		lives bool
	}
	tests := []struct {
		name, stat string
		want       want
	}{
		{"sleeping", "4711 (sh) S 1 4710 4709" + rest + "1 0 7", want{4710, true}},
		{"stuck", "4711 (sh) D 1 4710 4709" + rest + "1 0 7", want{4710, true}},
		{"zombie", "4711 (sh) Z 1 4710 4709" + rest + "1 0 7", want{4710, false}},
		{"a dead leader of threads", "4711 (sh) Z 1 4710 4709" + rest + "3 0 7", want{4710, true}},
		{"a name that looks like more", "4711 (a) Z 1 1) S 1 4710 4709" + rest + "1 0 7", want{4710, true}},
		{"cut off", "4711 (sh) S 1", want{}},
		{"empty", "", want{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pgid, lives := parseStat(tt.stat)
			if got := (want{pgid, lives}); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
