# Homebrew's formula of Parley, for a tap.
class Parley < Formula
  desc "Meeting place for coding agents: they find each other, talk and hand work over"
  homepage "{{.Repository}}"
  version "{{.Version}}"
  license "MIT"
{{range .Systems}}
  on_{{if eq .Name "darwin"}}macos{{else}}{{.Name}}{{end}} do
{{- range .Archives}}
    on_{{if eq .Arch "amd64"}}intel{{else}}arm{{end}} do
      url "{{$.URL}}/{{.Name}}"
      sha256 "{{.Sum}}"
    end
{{- end}}
  end
{{end}}
  def install
    bin.install "parley"
    bin.install_symlink "parley" => "a2a-hub"
    bin.install_symlink "parley" => "nats-mcp-server"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/parley.bash" => "parley"
    zsh_completion.install "completions/parley.zsh" => "_parley"
    fish_completion.install "completions/parley.fish"
    doc.install "README.md", "CHANGELOG.md", "NOTICE"
  end

  service do
    run [opt_bin/"parley", "start", "--foreground"]
    keep_alive successful_exit: false
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/parley --version")
  end
end
