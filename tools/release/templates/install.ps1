# Installs Parley {{.Version}} for this user, without an administrator:
#
#   irm {{.URL}}/install.ps1 | iex
#
# $env:PARLEY_INSTALL_DIR  where the programs go (default %LOCALAPPDATA%\Programs\parley)
# $env:PARLEY_INSTALL_URL  where the archives are (default {{.URL}})
# $env:PARLEY_UNINSTALL    anything: remove it; your data in ~\.a2a-hub stays
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'

$version = '{{.Version}}'
$url = if ($env:PARLEY_INSTALL_URL) { $env:PARLEY_INSTALL_URL } else { '{{.URL}}' }
$bin = if ($env:PARLEY_INSTALL_DIR) { $env:PARLEY_INSTALL_DIR } else { Join-Path $env:LOCALAPPDATA 'Programs\parley' }
$arch = if ($env:PROCESSOR_ARCHITECTURE -eq 'ARM64') { 'arm64' } else { 'amd64' }
$name = "parley_${version}_windows_$arch"
$parley = Join-Path $bin 'parley.exe'
$others = 'a2a-hub.exe', 'nats-mcp-server.exe' | ForEach-Object { Join-Path $bin $_ } # further names of the program
$notice = Join-Path $bin 'parley-NOTICE.txt'

function Set-UserPath([string[]] $parts) { [Environment]::SetEnvironmentVariable('Path', ($parts -join ';'), 'User') }
$path = @([Environment]::GetEnvironmentVariable('Path', 'User') -split ';' | Where-Object { $_ })

# Windows removes no program that runs, but renames it. What is left of it goes the next time.
function Remove-Program([string] $file) {
  Remove-Item -Force -ErrorAction SilentlyContinue "$file.*.old"
  if (-not (Test-Path $file)) { return }
  try { Remove-Item -Force $file } catch { Move-Item $file "$file.$([Guid]::NewGuid()).old" }
}

if ($env:PARLEY_UNINSTALL) {
  foreach ($file in @($parley) + $others) { Remove-Program $file }
  Remove-Item -Force -ErrorAction SilentlyContinue $notice
  # A directory with other files stays, and is found as before.
  if (-not (Get-ChildItem -Force -ErrorAction SilentlyContinue $bin)) {
    Remove-Item -Force -ErrorAction SilentlyContinue $bin
    Set-UserPath ($path | Where-Object { $_ -ne $bin })
  }
  Write-Host 'Parley is removed. Its data, if you have used it, is still in ~\.a2a-hub.'
  if (Get-ChildItem -ErrorAction SilentlyContinue "$parley.*.old") { Write-Host "A hub still runs: end it, and remove $parley.*.old." }
  return
}

$work = Join-Path ([IO.Path]::GetTempPath()) ([Guid]::NewGuid())
New-Item -ItemType Directory $work | Out-Null
try {
  foreach ($file in 'SHA256SUMS', "$name.zip") { Invoke-WebRequest -UseBasicParsing "$url/$file" -OutFile (Join-Path $work $file) }
  $line = Get-Content (Join-Path $work 'SHA256SUMS') | Where-Object { $_.EndsWith("  $name.zip") }
  if (-not $line) { throw "SHA256SUMS does not have $name.zip" }
  $have = (Get-FileHash -Algorithm SHA256 (Join-Path $work "$name.zip")).Hash.ToLower()
  if ($have -ne $line.Split(' ')[0]) { throw "$name.zip is not what SHA256SUMS says: nothing is installed" }
  Expand-Archive (Join-Path $work "$name.zip") $work
  New-Item -ItemType Directory -Force $bin | Out-Null
  # The new program is there before the old one goes: a full disk leaves the old one.
  Copy-Item -Force (Join-Path $work "$name\parley.exe") "$parley.new"
  foreach ($file in @($parley) + $others) { Remove-Program $file }
  Move-Item "$parley.new" $parley
  foreach ($file in $others) {
    try { New-Item -ItemType HardLink -Path $file -Value $parley | Out-Null } catch { Copy-Item $parley $file } # not every file system has links
  }
  Copy-Item -Force (Join-Path $work "$name\NOTICE") $notice
} finally {
  Remove-Item -Recurse -Force $work
}
if ($path -notcontains $bin) { Set-UserPath ($path + $bin) }
$env:Path = "$bin;$env:Path"
Write-Host "Parley $version is in $bin."
Write-Host 'Next: parley send echo "hello"'
