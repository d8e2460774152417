#include "cli/timeline_html.h"

#include <fmt/format.h>

namespace megatrain {
namespace {

constexpr const char* kPage = R"(<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>body{font:14px system-ui,sans-serif;margin:16px;background:#fff;color:#222}pre{background:#f5f5f3;padding:12px;overflow:auto}
canvas{width:100%;border:1px solid #ccc;cursor:grab}#tip{position:fixed;background:#222;color:#fff;padding:4px 8px;border-radius:4px;pointer-events:none;display:none}</style>
<h1>{title}</h1><canvas id="c" height="{height}"></canvas><div id="tip"></div><p>Wheel: zoom. Drag: move. Double click: all.</p><pre>{text}</pre>
<script>
const lanes={lanes},kinds={kinds},tasks={tasks},total={total};
// task: lane, kind, unit, micro-batch, begin, length (microseconds)
const c=document.getElementById('c'),g=c.getContext('2d'),tip=document.getElementById('tip');
let from=0,to=total,drag=null;const left=90,row=34;
const colour=k=>`hsl(${(k*47)%360} 55% ${52+(k%3)*7}%)`;
const x=t=>left+(t-from)/(to-from)*(c.width-left);
function draw(){c.width=c.clientWidth;g.clearRect(0,0,c.width,c.height);g.font='12px sans-serif';
 lanes.forEach((n,i)=>{g.fillStyle=i%2?'#fafafa':'#f0f0ee';g.fillRect(left,i*row,c.width,row);g.fillStyle='#222';g.fillText(n,6,i*row+21)});
 for(const [l,k,u,m,b,d] of tasks){if(b+d<from||b>to)continue;const a=Math.max(x(b),left),w=Math.max(x(b+d)-a,.6);
  g.fillStyle=colour(k);g.fillRect(a,l*row+4,w,row-8);if(w>60){g.fillStyle='#fff';g.fillText(kinds[k]+(u>=0?' '+u:''),a+3,l*row+21,w-6)}}
 g.fillStyle='#222';for(let i=0;i<=8;i++){const t=from+(to-from)*i/8;g.fillText((t/1e3).toFixed(2)+' ms',x(t)-(i==8?60:0),lanes.length*row+16)}}
const at=e=>from+(e.offsetX-left)/(c.clientWidth-left)*(to-from);
c.onwheel=e=>{e.preventDefault();const t=at(e),f=Math.exp(e.deltaY/400);from=Math.max(0,t-(t-from)*f);to=Math.min(total,t+(to-t)*f);draw()};
c.onmousedown=e=>drag=[e.offsetX,from,to];onmouseup=()=>drag=null;c.ondblclick=()=>{from=0;to=total;draw()};
c.onmousemove=e=>{if(drag){const d=(e.offsetX-drag[0])/(c.clientWidth-left)*(drag[2]-drag[1]);from=drag[1]-d;to=drag[2]-d;draw();return}
 const t=at(e),l=Math.floor(e.offsetY/row),h=tasks.find(q=>q[0]==l&&q[4]<=t&&t<=q[4]+q[5]);tip.style.display=h?'block':'none';
 if(h){tip.style.left=e.clientX+12+'px';tip.style.top=e.clientY+12+'px';tip.textContent=kinds[h[1]]+(h[2]>=0?', unit '+h[2]:'')+(h[3]>=0?', micro-batch '+h[3]:'')+': '+(h[5]/1e3).toFixed(3)+' ms at '+(h[4]/1e3).toFixed(3)+' ms'}};
onresize=draw;draw();
</script>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

void put(std::string& page, const std::string& name, const std::string& value) {
  const std::string mark = "{" + name + "}";
  for (size_t at = page.find(mark); at != std::string::npos; at = page.find(mark, at + value.size()))
    page.replace(at, mark.size(), value);
}

}  // namespace

std::string timeline_html(const Schedule& s, const Timeline& t, const std::string& title,
                          const std::string& text) {
  bool used[kLanes] = {false};
  for (const Task& task : s.tasks) used[static_cast<size_t>(task.lane)] = true;
  std::string lanes, kinds, tasks;
  int row[kLanes] = {0}, rows = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    row[lane] = rows;
    if (!used[lane]) continue;
    lanes += fmt::format("{}\"{}\"", rows++ ? "," : "", name_of(static_cast<Lane>(lane)));
  }
  for (int k = 0; k <= static_cast<int>(TaskKind::read_back); ++k)
    kinds += fmt::format("{}\"{}\"", k ? "," : "", name_of(static_cast<TaskKind>(k)));
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    const Task& task = s.tasks[i];
    tasks += fmt::format("{}[{},{},{},{},{:.1f},{:.1f}]", i ? "," : "", row[static_cast<size_t>(task.lane)],
                         static_cast<int>(task.kind), task.unit, task.micro, t.spans[i].begin * 1e6,
                         (t.spans[i].end - t.spans[i].begin) * 1e6);
  }
  std::string page = kPage;
  put(page, "title", escaped(title)), put(page, "text", escaped(text));
  put(page, "height", std::to_string(rows * 34 + 24)),
      put(page, "total", fmt::format("{:.1f}", t.seconds * 1e6));
  put(page, "lanes", "[" + lanes + "]"), put(page, "kinds", "[" + kinds + "]"),
      put(page, "tasks", "[" + tasks + "]");
  return page;
}

}  // namespace megatrain
