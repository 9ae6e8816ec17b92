package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/embedcni/cni/thick/server"
)

// FuzzServeHTTP: the Backend gets only checked requests, whatever a client sends, and each
// request has one of the documented answers.
func FuzzServeHTTP(f *testing.F) {
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "x"} {
		f.Add("/cni", request(verb, "c1"))
		f.Add("/cni", request(verb, "c1", variable("CNI_ARGS", "A=B;C"), variable("CNI_PATH", "/opt/cni/bin/../..:/opt/cni/bin/a")))
	}
	f.Add("/cni", request("GC", "", configured(`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"}]}`)))
	f.Add("/readyz", []byte("null"))
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		d := &backend{}
		d.Do = func(_ context.Context, verb string, r *server.Request) (types.Result, error) {
			checkRequest(t, verb, r)
			return addressed("10.1.0.7/16"), nil
		}
		s := newServer(t, d, server.Options{
			PluginDirs: []string{"/opt/cni/bin"},
			Limits:     server.Limits{Request: 1 << 14, Deadline: 1}, // a readiness file is not waited for
		})
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.URL.Path = path
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		var said types.Error
		switch w.Code {
		case http.StatusOK, http.StatusNotFound, http.StatusRequestEntityTooLarge:
		case http.StatusBadRequest, http.StatusServiceUnavailable:
			if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || said.Code == 0 || said.Code == types.ErrInternal {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
		default:
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		if w.Code != http.StatusOK && len(d.Verbs()) > 0 {
			t.Errorf("status %d after %v", w.Code, d.Verbs())
		}
	})
}

func checkRequest(t *testing.T, verb string, r *server.Request) {
	if err := utils.ValidateNetworkName(r.Network); err != nil {
		t.Errorf("%s on network %q", verb, r.Network)
	}
	if !json.Valid(r.Config) {
		t.Errorf("%s with configuration %s", verb, r.Config)
	}
	for _, dir := range r.PluginDirs {
		if rel, err := filepath.Rel("/opt/cni/bin", dir); err != nil || strings.HasPrefix(rel, "..") {
			t.Errorf("%s with plugins of %q", verb, dir)
		}
	}
	if verb == "GC" || verb == "STATUS" {
		return
	}
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		t.Errorf("%s for container %q", verb, r.ContainerID)
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		t.Errorf("%s for interface %q", verb, r.IfName)
	}
	if !filepath.IsAbs(r.NetNS) && (r.NetNS != "" || verb != "DEL") {
		t.Errorf("%s in namespace %q", verb, r.NetNS)
	}
}
