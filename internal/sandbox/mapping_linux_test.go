package sandbox

import (
	"reflect"
	"syscall"
	"testing"
)

func TestParseMap(t *testing.T) {
	tests := map[string]struct {
		text string
		want []syscall.SysProcIDMap
	}{
		"all ids":         {"         0          0 4294967295\n", []syscall.SysProcIDMap{{Size: 65536}}},
		"rootless engine": {"0 1000 1\n1 100000 65536\n", []syscall.SysProcIDMap{{Size: 1}, {ContainerID: 1, HostID: 1, Size: 65535}}},
		"one id":          {"0 1000 1\n", []syscall.SysProcIDMap{{Size: 1}}},
		"beyond the end":  {"0 0 1\n70000 70000 10\n", []syscall.SysProcIDMap{{Size: 1}}},
		"nothing":         {"", nil},
		"garbage":         {"0 x 1\n", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseMap(tt.text)
			if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.want != nil) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}
