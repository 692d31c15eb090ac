package main

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"
)

// service is a service of the compose file.
type service struct {
	Image, Hostname     string
	Entrypoint, Command []string
	Volumes, Ports      []string
	DependsOn           []string `yaml:"depends_on"`
	Environment         map[string]string
}

// The compose file is a hub on a cluster of three NATS servers, with the options that such a server accepts.
func TestTheComposeFileIsAClusterOfThree(t *testing.T) {
	r := release{dir: t.TempDir(), version: "1.2.3"}
	if err := r.fill("compose.yaml", nil); err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]service
		Volumes  map[string]any
	}
	if err := yaml.Unmarshal([]byte(read(t, r.dir)["compose.yaml"]), &file); err != nil {
		t.Fatal(err)
	}
	hub := file.Services["hub"]
	if hub.Image != image+":1.2.3" || len(file.Services) != 4 || len(hub.Ports) != 1 {
		t.Fatalf("%+v", file)
	}
	urls := ""
	for i := range 3 {
		name := fmt.Sprintf("nats-%d", i+1)
		nats := file.Services[name]
		flags := flag.NewFlagSet("nats-server", flag.ContinueOnError)
		o, err := server.ConfigureOptions(flags, slices.Concat(nats.Entrypoint, nats.Command)[1:], t.FailNow, t.FailNow, t.FailNow)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if nats.Entrypoint[0] != "nats-server" || nats.Hostname != name || o.ServerName != name || o.Cluster.Name != "parley" || o.Cluster.Port != 6222 || len(o.Routes) != 3 || o.Routes[i].Hostname() != name ||
			!o.JetStream || !slices.Equal(nats.Volumes, []string{name + ":" + o.StoreDir}) {
			t.Errorf("%s: %+v, %+v", name, nats, o)
		}
		if _, ok := file.Volumes[name]; !ok || !slices.Contains(hub.DependsOn, name) {
			t.Errorf("%s has no volume, or the hub does not wait for it", name)
		}
		urls += ",nats://" + name + ":4222"
	}
	if hub.Environment["PARLEY_BUS_URL"] != urls[1:] || hub.Environment["PARLEY_HTTP_TOKEN"] == "" || !slices.Equal(hub.Volumes, []string{"hub:/data"}) {
		t.Errorf("the hub: %+v", hub)
	}
}
