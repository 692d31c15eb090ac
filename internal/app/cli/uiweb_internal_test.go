package cli

import "testing"

func TestBrowsers(t *testing.T) {
	for _, c := range []struct {
		system string
		env    map[string]string
		want   string
	}{
		{"linux", nil, ""}, {"linux", map[string]string{"DISPLAY": ":0"}, "xdg-open"}, {"freebsd", map[string]string{"WAYLAND_DISPLAY": "w"}, "xdg-open"},
		{"darwin", nil, "open"}, {"windows", nil, "rundll32"}, {"linux", map[string]string{"BROWSER": "lynx"}, "lynx"},
		{"darwin", map[string]string{"BROWSER": "a %s:b"}, "open"},
	} {
		a := &app{getenv: func(name string) string { return c.env[name] }}
		if name, args := a.browser(c.system, "http://x"); name != c.want || name != "" && args[len(args)-1] != "http://x" {
			t.Errorf("%s %v: %s %q", c.system, c.env, name, args)
		}
	}
}
