autoload -U +X bashcompinit && bashcompinit
_toolgate() {
  local IFS=$'\n' cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} place= word words=
  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
    case "$place/$word" in
      /serve|/init|/setup|/install|/demo|/call|/run|/mcp|/check-config|/trust|/login|/logout|/people|/people/list|/people/link|/people/delegate|/people/invite|/people/revoke|/people/rename|/channel|/channel/list|/channel/notices|/channel/test|/token|/token/create|/token/list|/token/revoke|/connect|/claude|/disconnect|/inbox|/asks|/reply|/reject|/stop|/resume|/grants|/grants/revoke|/grants/confirm|/watch|/output|/tools|/sources|/workers|/doctor|/upstream|/upstream/accept|/plan|/explain|/rules|/stats|/simulate|/suggest|/audit|/audit/export|/audit/verify|/hook|/mcp-approve|/backup|/upgrade|/restore|/completion) place="$place/$word" ;;
    esac
  done
  COMPREPLY=()
  case "$prev" in
    --unattended) COMPREPLY=($(compgen -W $'wait\ndeny' -- "$cur")); return ;;
    --log-level) COMPREPLY=($(compgen -W $'debug\ninfo\nwarn\nerror' -- "$cur")); return ;;
    --preset) COMPREPLY=($(compgen -W $'contained\nnone' -- "$cur")); return ;;
    --agent) COMPREPLY=($(compgen -W $'claude\ncodex\ncopilot\ngemini\nopencode\nmcp\nnone' -- "$cur")); return ;;
    --token-file|--ca|--cert|--key|--data|--workspace|--tls-cert|--tls-key|--tls-client-ca|--config|--root|--agent-program|--people|--backup) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --server|--token|--listen|--registries|--address|--name|--session|--call-id|--agent|--timeout|--workspace|--metadata|--provider|--for|--permission|--role|--tool|--may-call|--pin|--label|--days|--user|--answer|-a|--message|-m|--reason|--offer|--times|--edit|-r|--after|--call|--rule|--fail-on|--uid|--certificate|--mcp) return ;;
  esac
  case "$place" in
    "") words=$'serve\ninit\nsetup\ninstall\ndemo\ncall\nrun\nmcp\ncheck-config\ntrust\nlogin\nlogout\npeople\nchannel\ntoken\nconnect\nclaude\ndisconnect\ninbox\nasks\nreply\nreject\nstop\nresume\ngrants\nwatch\noutput\ntools\nsources\nworkers\ndoctor\nupstream\nplan\nexplain\nrules\nstats\nsimulate\nsuggest\naudit\nhook\nmcp-approve\nbackup\nupgrade\nrestore\ncompletion\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json\n--help' ;;
    "/serve") words=$'--listen\n--data\n--workspace\n--insecure-no-auth\n--tls-cert\n--tls-key\n--tls-client-ca\n--allow-insecure-listen\n--unattended\n--opencode\n--log-level\n--config\n--new-store\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/init") words=$'--preset\n--registries\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/setup") words=$'--address\n--name\n--preset\n--agent\n--config\n--data\n--listen\n--workspace\n--tls-cert\n--tls-key\n--yes\n--no-wait\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/install") words=$'--workspace\n--yes\n--root\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/demo") words=$'--auto\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/call") words=$'--session\n--call-id\n--agent\n--timeout\n--workspace\n--metadata\n--detach\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/run") words=$'--workspace\n--config\n--agent\n--timeout\n--metadata\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/mcp") words=$'--workspace\n--session\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/check-config") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/trust") words=$'--remove\n--data\n--config\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/login") words=$'--name\n--provider\n--device\n--new-code\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/logout") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/people") words=$'list\nlink\ndelegate\ninvite\nrevoke\nrename\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/people/list") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/people/link") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/people/delegate") words=$'--for\n--permission\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/people/invite") words=$'--data\n--config\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/people/revoke") words=$'--data\n--config\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/people/rename") words=$'--data\n--config\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/channel") words=$'list\nnotices\ntest\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/channel/list") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/channel/notices") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/channel/test") words=$'--data\n--config\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/token") words=$'create\nlist\nrevoke\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/token/create") words=$'--data\n--config\n--role\n--agent\n--workspace\n--tool\n--permission\n--may-call\n--idempotent\n--pin\n--label\n--days\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/token/list") words=$'--data\n--config\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/token/revoke") words=$'--data\n--config\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/connect") words=$'claude\ncodex\ncopilot\ngemini\nopencode\nmcp\n--check\n--list\n--yes\n--user\n--workspace\n--agent-program\n--no-canary\n--http-hook\n--system\n--accept-plugins\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/claude") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/disconnect") words=$'claude\ncodex\ncopilot\ngemini\nopencode\nmcp\n--user\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/inbox") words=$'--session\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/asks") words=$'--session\n--watch\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/reply") words=$'once\nalways\nreject\n--answer\n--message\n--reason\n--offer\n--for\n--times\n--edit\n--whole-call\n--session\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/reject") words=$'--agent\n--message\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/stop") words=$'agent\nsession\nall\n--reason\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/resume") words=$'agent\nsession\nall\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/grants") words=$'revoke\nconfirm\n--all\n--session\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/grants/revoke") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/grants/confirm") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/watch") words=$'--after\n--call\n--json-form\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/output") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/tools") words=$'--agent\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/sources") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/workers") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/doctor") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/upstream") words=$'accept\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/upstream/accept") words=$'--yes\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/plan") words=$'--agent\n--session\n--rule\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/explain") words=$'--agent\n--session\n--rule\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/rules") words=$'--agent\n--session\n--workspace\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/stats") words=$'--asks\n--days\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/simulate") words=$'--days\n--agent\n--fail-on\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/suggest") words=$'--days\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/audit") words=$'export\nverify\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/audit/export") words=$'--session\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/audit/verify") words=$'--session\n--people\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/hook") words=$'claude\nopencode\ncodex\ngemini\ncopilot\n--uid\n--certificate\n--mcp\n--timeout\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/mcp-approve") words=$'claude\n--uid\n--certificate\n--timeout\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/backup") words=$'--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/upgrade") words=$'--check\n--config\n--data\n--backup\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/restore") words=$'--data\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
    "/completion") words=$'bash\nzsh\nfish\n--help\n--version\n--server\n--token\n--token-file\n--ca\n--cert\n--key\n--json' ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case "$place" in
    "/init"|"/check-config"|"/trust"|"/simulate"|"/audit/verify"|"/backup"|"/restore") COMPREPLY+=($(compgen -f -- "$cur")) ;;
  esac
}
complete -F _toolgate toolgate
