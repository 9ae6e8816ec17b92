package main

import (
	"encoding/json"
	"log"
	"os"
	"reflect"
	"strings"

	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/server"
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/server/api"
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/server/config"
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/types"
)

// writeKeys writes {"configuration": {key: kind}, "element": {key: kind}}.
func writeKeys() {
	all := map[string]map[string]string{"configuration": {}, "element": {}}
	for _, of := range []any{types.NetConf{}, config.MultusConf{}, api.ShimNetConf{}, server.ControllerNetConf{}} {
		collect(all["configuration"], reflect.TypeOf(of))
	}
	collect(all["element"], reflect.TypeFor[types.NetworkSelectionElement]())
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		log.Fatal(err)
	}
}

// collect adds the keys of a struct, with those of embedded ones.
func collect(keys map[string]string, of reflect.Type) {
	for i := range of.NumField() {
		field := of.Field(i)
		key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			collect(keys, field.Type)
		case key != "" && key != "-":
			kind := field.Type
			if kind.Kind() == reflect.Pointer {
				kind = kind.Elem()
			}
			keys[key] = kind.Kind().String()
		}
	}
}
